//! The suite to submit: read from a file or made from the options of a one-off, and checked before anything is started.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use migperf_core::suite::{LONGEST_SUITE, Suite, SuiteErrors, Target};

use crate::quick::Quick;

/// Why there is no suite to submit.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SuiteFault {
    /// The file can't be read.
    #[error("can't read the suite {path}")]
    Read {
        path: String,
        #[source]
        source: io::Error,
    },
    /// The file is not text.
    #[error("the suite {0} is not UTF-8 text")]
    NotText(String),
    /// It is longer than any suite.
    #[error("the suite {path} is longer than the limit of {LONGEST_SUITE} bytes")]
    TooLong { path: String },
    /// It is wrong; each problem is told with its place.
    #[error("{}", placed(.path, .errors))]
    Wrong { path: String, errors: SuiteErrors },
    /// The daemon found something wrong that reading alone can't see.
    #[error("{path}: {text}")]
    Unplannable { path: String, text: String },
}

/// One problem a line, each with file, line and column as compilers write them.
fn placed(path: &str, errors: &SuiteErrors) -> String {
    let count = errors.as_slice().len();
    let plural = if count == 1 { "" } else { "s" };
    let mut text = format!("{count} problem{plural} in {path}");
    for error in errors.as_slice() {
        let _ = write!(text, "\n{path}:{}:{}: {}", error.line, error.column, error.problem);
    }
    text
}

/// A checked suite's text, and what people call its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    /// Reads a suite from a file, or from standard input if the path is `-`.
    pub(crate) fn read(path: &Path) -> Result<Self, SuiteFault> {
        if path == Path::new("-") {
            return Self::from_reader("<standard input>".to_owned(), io::stdin().lock());
        }
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) => Self::from_reader(name, file),
            Err(source) => Err(SuiteFault::Read { path: name, source }),
        }
    }

    fn from_reader(path: String, reader: impl Read) -> Result<Self, SuiteFault> {
        let mut bytes = Vec::new();
        if let Err(source) = reader.take(LONGEST_SUITE as u64 + 1).read_to_end(&mut bytes) {
            return Err(SuiteFault::Read { path, source });
        }
        if bytes.len() > LONGEST_SUITE {
            return Err(SuiteFault::TooLong { path });
        }
        match String::from_utf8(bytes) {
            Ok(text) => Self::checked(path, text),
            Err(_) => Err(SuiteFault::NotText(path)),
        }
    }

    /// The suite that the options of a one-off stand for on a target; none: on either.
    pub(crate) fn of_options(quick: &Quick, target: Option<Target>) -> Result<Self, SuiteFault> {
        Self::checked("<options>".to_owned(), quick.to_suite(target))
    }

    fn checked(path: String, text: String) -> Result<Self, SuiteFault> {
        match Suite::parse(&text) {
            Ok(_) => Ok(Self { path, text }),
            Err(errors) => Err(SuiteFault::Wrong { path, errors }),
        }
    }

    /// Places the daemon's words about this suite.
    pub(crate) fn unplannable(&self, text: String) -> SuiteFault {
        SuiteFault::Unplannable { path: self.path.clone(), text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_is_told_with_file_line_and_column() {
        let text = "version = 1\nname = \"x\"\nrepeat = 3\n[[trial]]\nsharing = \"msp\"\nworkload = 5\n";
        let error = Source::from_reader("night.toml".to_owned(), text.as_bytes()).unwrap_err().to_string();
        let lines: Vec<&str> = error.lines().collect();
        assert!(lines.len() >= 4 && lines[0].ends_with(" problems in night.toml"), "{error}");
        assert!(lines[1].starts_with("night.toml:3:1: "), "{error}");
        assert!(lines.iter().any(|line| line.starts_with("night.toml:5:11: ")), "{error}");
    }

    #[test]
    fn what_is_no_suite_file_is_refused_by_name() {
        let missing = Source::read(Path::new("/nonexistent/night.toml")).unwrap_err();
        assert_eq!(missing.to_string(), "can't read the suite /nonexistent/night.toml");
        let binary = Source::from_reader("a".to_owned(), &[0xff, 0xfe][..]).unwrap_err();
        assert!(matches!(binary, SuiteFault::NotText(_)), "{binary}");
        let endless = Source::from_reader("a".to_owned(), io::repeat(b'#')).unwrap_err();
        assert!(matches!(endless, SuiteFault::TooLong { .. }), "{endless}");
    }
}

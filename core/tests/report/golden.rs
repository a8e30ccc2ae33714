//! Whole reports against stored ones. `MIGPERF_BLESS=1` stores what is made now; look at the difference before committing.

use std::path::Path;

use migperf_core::report::{Report, WATERMARK, csv, text};
use migperf_core::suite::Target;

use crate::synthetic::{REPEATED, job, troubled};

fn check(name: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/report/golden").join(name);
    if std::env::var_os("MIGPERF_BLESS").is_some() {
        std::fs::write(&path, made).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap();
    for (line, (made, stored)) in made.lines().zip(stored.lines()).enumerate() {
        assert_eq!(made, stored, "line {} of {name}", line + 1);
    }
    assert_eq!(made.len(), stored.len(), "{name}");
}

#[test]
fn a_repeated_job_as_text() {
    let report = Report::from_results(&job(REPEATED, Target::Gpu));
    check("repeated.txt", &text::render(&report, 100, false));
}

#[test]
fn a_troubled_job_as_text() {
    let report = Report::from_results(&troubled());
    check("troubled.txt", &text::render(&report, 100, false));
}

#[test]
fn a_troubled_job_as_csv() {
    check("troubled.csv", &csv::render(&Report::from_results(&troubled())));
}

#[test]
fn no_line_is_wider_than_asked() {
    for results in [job(REPEATED, Target::Gpu), troubled()] {
        let report = Report::from_results(&results);
        for width in [80, 100, 140] {
            for line in text::render(&report, width, false).lines() {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
        }
    }
}

#[test]
fn colour_only_adds_escapes() {
    let report = Report::from_results(&troubled());
    let coloured = text::render(&report, 100, true);
    assert!(coloured.contains("\x1b[31m"));
    let mut bare = coloured;
    for code in ["0", "1", "31", "32", "33"] {
        bare = bare.replace(&format!("\x1b[{code}m"), "");
    }
    assert_eq!(bare, text::render(&report, 100, false));
    assert!(!bare.contains('\x1b'), "an escape from a worker's message does not reach the terminal");
}

#[test]
fn what_is_simulated_says_so_everywhere() {
    let real = Report::from_results(&job(REPEATED, Target::Gpu));
    let simulated = Report::from_results(&troubled());
    for (report, marked) in [(&real, false), (&simulated, true)] {
        for output in [text::render(report, 100, false), csv::render(report), report.to_json()] {
            assert_eq!(output.contains(WATERMARK), marked);
        }
    }
    let text = text::render(&simulated, 100, false);
    assert!(text.starts_with(WATERMARK) && text.trim_end().ends_with(WATERMARK));
    assert!(csv::render(&simulated).lines().skip(1).all(|line| line.contains(WATERMARK)));
}

#[test]
fn every_csv_row_has_every_field() {
    let text = csv::render(&Report::from_results(&troubled()));
    let mut rows = text.split("\r\n").filter(|row| !row.is_empty());
    let fields = |row: &str| {
        let mut quoted = false;
        row.chars()
            .filter(|c| {
                quoted ^= *c == '"';
                *c == ',' && !quoted
            })
            .count()
    };
    let wanted = fields(rows.next().unwrap());
    for row in rows {
        assert_eq!(fields(row), wanted, "{row}");
    }
}

#[test]
fn json_comes_back_as_it_went() {
    for results in [job(REPEATED, Target::Gpu), troubled()] {
        let report = Report::from_results(&results);
        assert_eq!(serde_json::from_str::<Report>(&report.to_json()).unwrap(), report);
    }
}

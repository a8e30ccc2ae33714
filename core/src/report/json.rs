//! JSON that people can read: indented, but arrays of numbers in one line, since a report has columns of hundreds.

use std::io;

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// A value as JSON with a line end.
///
/// # Errors
/// If the value has a key that is no text.
pub(super) fn indented<T: Serialize>(value: &T) -> serde_json::Result<String> {
    let mut bytes = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut bytes, Indented::default()))?;
    bytes.push(b'\n');
    Ok(String::from_utf8(bytes).expect("the serializer writes UTF-8"))
}

/// Two blanks a level. Whether an array's element begins a line is known only when its kind is.
#[derive(Debug, Default)]
struct Indented {
    depth: usize,
    /// An element of an array has been announced and not begun.
    pending: bool,
    /// What was closed or begun last fills the line, so that its container closes on a line of its own.
    lines: bool,
}

impl Indented {
    fn line(&self, writer: &mut (impl io::Write + ?Sized)) -> io::Result<()> {
        writer.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| writer.write_all(b"  "))
    }

    fn open(&mut self, writer: &mut (impl io::Write + ?Sized), bracket: &[u8]) -> io::Result<()> {
        if std::mem::take(&mut self.pending) {
            self.line(writer)?;
        }
        self.depth += 1;
        self.lines = false;
        writer.write_all(bracket)
    }

    fn close(&mut self, writer: &mut (impl io::Write + ?Sized), bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if std::mem::replace(&mut self.lines, true) {
            self.line(writer)?;
        }
        writer.write_all(bracket)
    }
}

impl Formatter for Indented {
    fn begin_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: io::Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.pending = true;
        if first { Ok(()) } else { writer.write_all(b",") }
    }

    /// An array of arrays or objects closes on a line of its own: they have just set that. A number or text has not.
    fn end_array_value<W: io::Write + ?Sized>(&mut self, _: &mut W) -> io::Result<()> {
        if std::mem::take(&mut self.pending) {
            self.lines = false;
        }
        Ok(())
    }

    fn begin_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: io::Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(b",")?;
        }
        self.line(writer)
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.pending = false;
        writer.write_all(b": ")
    }

    fn end_object_value<W: io::Write + ?Sized>(&mut self, _: &mut W) -> io::Result<()> {
        self.lines = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_in_a_line_and_objects_do_not() {
        let value = serde_json::json!({
            "a": [1, null, 2.5], "b": [], "c": {}, "d": [{"e": ["x", "y"]}, {"f": [[1], [2, 3]]}], "g": true
        });
        let text = indented(&value).unwrap();
        let expected = "\
{
  \"a\": [1,null,2.5],
  \"b\": [],
  \"c\": {},
  \"d\": [
    {
      \"e\": [\"x\",\"y\"]
    },
    {
      \"f\": [
        [1],
        [2,3]
      ]
    }
  ],
  \"g\": true
}
";
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}

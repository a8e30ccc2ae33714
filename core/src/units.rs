//! Units as types, so that a number never travels without what it counts.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);
    };
}

quantity!(
    /// A reading of CLOCK_MONOTONIC in nanoseconds: comparable between processes of one host and one boot.
    MonotonicNanos(u64)
);
quantity!(
    /// A reading of CLOCK_REALTIME in nanoseconds since the epoch.
    RealtimeNanos(u64)
);
quantity!(
    /// Instantaneous or averaged electrical power of a whole device, in milliwatts.
    Milliwatts(u32)
);
quantity!(
    /// Energy in millijoules; NVML's counter starts at driver load.
    Millijoules(u64)
);
quantity!(
    /// A size in bytes.
    Bytes(u64)
);
quantity!(
    /// A clock frequency in MHz.
    Megahertz(u32)
);
quantity!(
    /// A temperature in degrees Celsius.
    Celsius(u32)
);
quantity!(
    /// A share in whole percent, 0 to 100.
    Percent(u32)
);

impl MonotonicNanos {
    /// This instant moved forward by `span`.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }

    /// The time from `earlier` to this instant; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Whole nanoseconds of a duration, saturating (585 years).
#[must_use]
pub fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Display for Bytes {
    /// Binary units, named as such: `1.50 GiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
        let value = self.0 as f64;
        match self.0 {
            0..1024 => write!(f, "{} B", self.0),
            1024..1_048_576 => write!(f, "{:.1} KiB", value / 1024.0),
            1_048_576..1_073_741_824 => write!(f, "{:.1} MiB", value / 1_048_576.0),
            _ => write!(f, "{:.2} GiB", value / 1_073_741_824.0),
        }
    }
}

/// A span of time as people write it in a suite: `45s`, `500ms`, `2m`, `1h`, `1m30s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub Duration);

/// Why a span of time could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpanError {
    /// The text is not numbers each followed by a unit.
    #[error("`{0}` is not a span of time; write a number and a unit (ms, s, m, h), such as \"45s\" or \"1m30s\"")]
    Malformed(String),
    /// The span does not fit.
    #[error("`{0}` is too long")]
    TooLong(String),
}

impl FromStr for Span {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, SpanError> {
        let malformed = || SpanError::Malformed(text.to_owned());
        let too_long = || SpanError::TooLong(text.to_owned());
        let mut rest = text.trim();
        let mut total: u64 = 0;
        if rest.is_empty() {
            return Err(malformed());
        }
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let value: u64 = match &rest[..digits] {
                "" => return Err(malformed()),
                number => number.parse().map_err(|_| too_long())?,
            };
            rest = &rest[digits..];
            let letters = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
            let milliseconds = match &rest[..letters] {
                "ms" => 1,
                "s" => 1_000,
                "m" => 60_000,
                "h" => 3_600_000,
                _ => return Err(malformed()),
            };
            rest = &rest[letters..];
            total = value.checked_mul(milliseconds).and_then(|part| total.checked_add(part)).ok_or_else(too_long)?;
        }
        Ok(Self(Duration::from_millis(total)))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.0.as_millis();
        let (hours, minutes, seconds, milliseconds) =
            (total / 3_600_000, total / 60_000 % 60, total / 1_000 % 60, total % 1_000);
        for (value, unit) in [(hours, "h"), (minutes, "m"), (seconds, "s"), (milliseconds, "ms")] {
            if value > 0 {
                write!(f, "{value}{unit}")?;
            }
        }
        if total == 0 { f.write_str("0s") } else { Ok(()) }
    }
}

impl Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_and_written_back() {
        for (text, milliseconds) in
            [("45s", 45_000), ("500ms", 500), ("2m", 120_000), ("1m30s", 90_000), ("1h", 3_600_000), ("0s", 0)]
        {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.0, Duration::from_millis(milliseconds));
            assert_eq!(span.to_string(), text);
        }
    }

    #[test]
    fn bad_spans_are_refused() {
        for text in ["", "45", "s", "45 s", "1.5s", "45sec", "-1s", "999999999999999999h", "99999999999999999999s"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_name_binary_units() {
        assert_eq!(Bytes(512).to_string(), "512 B");
        assert_eq!(Bytes(1_610_612_736).to_string(), "1.50 GiB");
    }
}

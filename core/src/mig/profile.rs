//! Names of MIG profiles, as NVML prints them and as people write them.
//!
//! A name may leave the memory size out (`1g`): it then stands for whichever size the device has.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A mark after a profile's size: `+me` (with media engines), `+gfx`, `+me.all`, `-me` (without).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Attribute {
    with: bool,
    name: String,
}

/// A profile's name: `1g.18gb`, `1g`, `2g.20gb+me`, `1g.24gb+me.all`, `1g.24gb-me`, `1c.3g.20gb`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Profile {
    slices: u32,
    memory: Option<u32>,
    compute: u32,
    attributes: Vec<Attribute>,
}

/// Why a text names no profile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// The text is not of the grammar.
    #[error("`{0}` is no MIG profile; write it as `1g`, `1g.18gb`, `2g.20gb+me` or `1c.3g.20gb`")]
    Malformed(String),
    /// A compute instance is part of its GPU instance.
    #[error("`{text}` asks for {compute} compute slices of an instance that has {slices}")]
    Compute {
        /// What was written.
        text: String,
        /// Compute slices asked for.
        compute: u32,
        /// Compute slices of the GPU instance.
        slices: u32,
    },
}

/// Slices or gigabytes: a number without sign or leading zero, of at most four digits.
fn number(text: &str) -> Option<u32> {
    let plain = (1..=4).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    if plain { text.parse().ok() } else { None }
}

fn attribute_name(text: &str) -> bool {
    let letters = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    text.len() <= 32 && text.split('.').all(letters)
}

/// Marks such as `+me`, `+me,gfx`, `+gfx-me`, in a canonical order and without doubles.
fn attributes(mut text: &str) -> Option<Vec<Attribute>> {
    let mut found = Vec::new();
    while let Some(sign) = text.chars().next() {
        let with = match sign {
            '+' => true,
            '-' => false,
            _ => return None,
        };
        let end = text[1..].find(['+', '-']).map_or(text.len(), |at| at + 1);
        for name in text[1..end].split(',') {
            if !attribute_name(name) {
                return None;
            }
            found.push(Attribute { with, name: name.to_owned() });
        }
        text = &text[end..];
    }
    found.sort_by(|a, b| (!a.with, &a.name).cmp(&(!b.with, &b.name)));
    found.dedup();
    Some(found)
}

impl FromStr for Profile {
    type Err = ProfileError;

    fn from_str(text: &str) -> Result<Self, ProfileError> {
        let malformed = || ProfileError::Malformed(text.to_owned());
        let marks = text.find(['+', '-']).unwrap_or(text.len());
        let attributes = attributes(&text[marks..]).ok_or_else(malformed)?;
        let mut parts: Vec<&str> = text[..marks].split('.').collect();
        let mut take_last = |suffix: &str| match parts.last().and_then(|part| part.strip_suffix(suffix)) {
            None => Ok(None),
            Some(digits) => {
                parts.pop();
                number(digits).map(Some).ok_or_else(malformed)
            }
        };
        let memory = take_last("gb")?;
        let slices = take_last("g")?.ok_or_else(malformed)?;
        let compute = take_last("c")?.unwrap_or(slices);
        if !parts.is_empty() {
            return Err(malformed());
        }
        if compute > slices {
            return Err(ProfileError::Compute { text: text.to_owned(), compute, slices });
        }
        Ok(Self { slices, memory, compute, attributes })
    }
}

impl Profile {
    /// Compute slices of the GPU instance: the 3 of `3g.71gb`.
    #[must_use]
    pub fn slices(&self) -> u32 {
        self.slices
    }

    /// The size in the name, in the gigabytes that NVIDIA rounds to; absent from a portable name. Not the instance's
    /// exact memory, which only the device knows.
    #[must_use]
    pub fn memory_gb(&self) -> Option<u32> {
        self.memory
    }

    /// Compute slices of the compute instance: the 1 of `1c.3g.20gb`, all of the GPU instance's where the name has none.
    #[must_use]
    pub fn compute_slices(&self) -> u32 {
        self.compute
    }

    /// The profile of the GPU instance: `3g.20gb` for `1c.3g.20gb`.
    #[must_use]
    pub fn whole(&self) -> Self {
        Self { compute: self.slices, ..self.clone() }
    }

    /// The profile of a compute instance of so many slices in this GPU instance; none if it has fewer.
    #[must_use]
    pub fn part(&self, compute: u32) -> Option<Self> {
        (1..=self.slices).contains(&compute).then(|| Self { compute, ..self.clone() })
    }

    /// Whether this name, perhaps portable, stands for the profile that a device calls `device`: the same slices and
    /// marks, and the same size unless this name leaves it out.
    #[must_use]
    pub fn matches(&self, device: &Self) -> bool {
        self.slices == device.slices
            && self.compute == device.compute
            && self.attributes == device.attributes
            && (self.memory.is_none() || self.memory == device.memory)
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.compute != self.slices {
            write!(f, "{}c.", self.compute)?;
        }
        write!(f, "{}g", self.slices)?;
        if let Some(memory) = self.memory {
            write!(f, ".{memory}gb")?;
        }
        let mut before = None;
        for Attribute { with, name } in &self.attributes {
            let joint = match (before == Some(*with), with) {
                (true, _) => ",",
                (false, true) => "+",
                (false, false) => "-",
            };
            write!(f, "{joint}{name}")?;
            before = Some(*with);
        }
        Ok(())
    }
}

impl TryFrom<String> for Profile {
    type Error = ProfileError;

    fn try_from(text: String) -> Result<Self, ProfileError> {
        text.parse()
    }
}

impl From<Profile> for String {
    fn from(profile: Profile) -> Self {
        profile.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(text: &str) -> Profile {
        text.parse().unwrap()
    }

    #[test]
    fn names_are_read_and_written_back() {
        for text in [
            "1g",
            "1g.18gb",
            "7g.141gb",
            "2g.20gb+me",
            "1g+me",
            "1g.24gb+gfx",
            "1g.24gb+me.all",
            "1g.24gb-me",
            "1c.3g.20gb",
            "1c.4g",
            "2g.48gb+gfx-me",
            "1g.5gb+gfx,me",
        ] {
            assert_eq!(profile(text).to_string(), text);
        }
        assert_eq!(profile("3c.3g.20gb"), profile("3g.20gb"));
        assert_eq!(profile("1g+me+gfx"), profile("1g+gfx,me"));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "g",
            "1",
            "1x",
            "1g.",
            "1g.gb",
            "1g.18",
            ".1g",
            "0g",
            "01g",
            "1g.18gb+",
            "1g.18gb+ME",
            "1g+me.",
            "1g 18gb",
            "4c.3g",
            "1c",
            "1c.18gb",
            "99999g",
            "-1g",
            "1g.18gb.20gb",
            "1c.1c.3g",
            "1g+me,",
            "é",
            "1gé",
        ] {
            assert!(text.parse::<Profile>().is_err(), "{text}");
        }
        assert_eq!(
            "4c.3g".parse::<Profile>().unwrap_err().to_string(),
            "`4c.3g` asks for 4 compute slices of an instance that has 3"
        );
    }

    #[test]
    fn portable_names_match_what_devices_have() {
        for (name, device, fits) in [
            ("1g", "1g.18gb", true),
            ("1g", "1g.35gb", true),
            ("1g", "1g.18gb+me", false),
            ("1g+me", "1g.18gb+me", true),
            ("1g.18gb", "1g.18gb", true),
            ("1g.18gb", "1g.35gb", false),
            ("3g", "1c.3g.20gb", false),
            ("1c.3g", "1c.3g.20gb", true),
            ("2g", "1g.10gb", false),
            ("1g", "1g.24gb-me", false),
        ] {
            assert_eq!(profile(name).matches(&profile(device)), fits, "{name} {device}");
        }
    }
}

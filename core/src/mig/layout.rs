//! A GPU's layout as people write it and as it was found: `off`, `empty`, `7x1g`, `3g+2g+1g+1g`, `3g.71gb@4+1g@0`,
//! `3g(1c+2c)`.
//!
//! Each item is one GPU instance. An item such as `1c.3g` is a GPU instance with one compute instance that is a part of
//! it; several compute instances share a GPU instance only inside parentheses. Which sizes and places a device has is
//! not known here (`planner`).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::mig::profile::{Profile, ProfileError};

/// How a GPU is divided, or is to be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Layout {
    /// MIG is disabled: `off`.
    Off,
    /// MIG is enabled, with these GPU instances in the order in which they are written: `empty` if there are none.
    On(Vec<Instance>),
}

/// One GPU instance of a layout.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance {
    /// Its profile, perhaps without the size; never that of a part.
    pub profile: Profile,
    /// Its memory slots, where they are said.
    pub place: Option<Place>,
    /// Its compute instances, in the order in which they are written. None: a GPU instance on which nothing can run.
    pub compute: Vec<Part>,
}

/// A compute instance of a GPU instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Part {
    /// Compute slices: the 2 of `2c`.
    pub slices: u32,
    /// Its compute slices within the GPU instance, where they are said.
    pub place: Option<Place>,
}

/// A place: `@4`, or `@4:4` with its size, as NVIDIA's tools write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The first slot.
    pub start: u32,
    /// How many slots. Said or not, it follows from profile and device: it is checked, not chosen.
    pub size: Option<u32>,
}

/// Why a text is no layout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}`, character {at}: {problem}")]
pub struct LayoutError {
    /// What was written.
    pub text: String,
    /// Where the item that is wrong begins, from 1.
    pub at: usize,
    /// What is wrong.
    pub problem: LayoutProblem,
}

/// What is wrong with an item of a layout, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutProblem {
    /// There is no text.
    #[error("nothing is written; write `off`, `empty`, or instances such as `7x1g` or `3g+2g+1g`")]
    Nothing,
    /// No profile's name.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A count is no number from 1.
    #[error("`{0}` does not say how many; write it as `7x1g`")]
    Count(String),
    /// No place.
    #[error("`@{0}` is no place; write the first slot, as in `3g@4`, or with the size `3g@4:4`")]
    Place(String),
    /// Several at one place.
    #[error("only one can be at `@{0}`; give each its own place, as in `1g@0+1g@1`")]
    SharedPlace(u32),
    /// No compute instance.
    #[error("`{0}` is no compute instance; write `1c`, `2x1c` or `1c@0`")]
    Part(String),
    /// Parts that are more than the whole.
    #[error("compute instances of {wanted} slices together do not fit into the {there} of `{profile}`; leave some out")]
    TooManyParts {
        /// Slices of all parts.
        wanted: u32,
        /// Slices of the GPU instance.
        there: u32,
        /// Its profile.
        profile: Profile,
    },
    /// A part's profile with parts of its own.
    #[error("`{0}` is a compute instance already; write the GPU instance before the parentheses, as in `3g(1c+2c)`")]
    PartOfPart(Profile),
    /// Parentheses do not match.
    #[error("the parentheses do not match; write the compute instances as in `3g(1c+2c)`")]
    Parentheses,
    /// More than any GPU has.
    #[error("more than {} instances; no GPU has so many", Layout::MOST)]
    TooMany,
}

impl Instance {
    /// A GPU instance of a profile, with one compute instance: all of it, or the part that the profile names (`1c.3g`).
    #[must_use]
    pub fn of(profile: &Profile) -> Self {
        let part = Part { slices: profile.compute_slices(), place: None };
        Self { profile: profile.whole(), place: None, compute: vec![part] }
    }

    /// Whether it has one compute instance that is all of it, wherever that lies.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        matches!(self.compute.as_slice(), [part] if part.slices == self.profile.slices())
    }
}

impl Layout {
    /// More instances than this on one GPU are taken for a mistake.
    pub const MOST: usize = 48;

    /// MIG enabled and nothing there.
    #[must_use]
    pub fn empty() -> Self {
        Self::On(Vec::new())
    }

    /// `count` instances of a profile; none if `count` is 0 or over [`Self::MOST`].
    #[must_use]
    pub fn repeated(profile: &Profile, count: usize) -> Option<Self> {
        (1..=Self::MOST).contains(&count).then(|| Self::On(vec![Instance::of(profile); count]))
    }

    /// Its GPU instances, in the order in which they are written.
    #[must_use]
    pub fn instances(&self) -> &[Instance] {
        match self {
            Self::Off => &[],
            Self::On(instances) => instances,
        }
    }

    /// Its compute instances by the names that devices give them (`1c.3g` for a part), in the order in which they are
    /// written: what workers run on.
    #[must_use]
    pub fn members(&self) -> Vec<Profile> {
        let of = |instance: &Instance| -> Vec<Profile> {
            instance.compute.iter().filter_map(|part| instance.profile.part(part.slices)).collect()
        };
        self.instances().iter().flat_map(of).collect()
    }

    /// The same instances in a canonical order: equal for layouts that ask for the same. Large ones come first.
    #[must_use]
    pub fn sorted(&self) -> Self {
        match self {
            Self::Off => Self::Off,
            Self::On(instances) => {
                let mut instances = instances.clone();
                instances.iter_mut().for_each(|instance| instance.compute.sort_by(|a, b| b.cmp(a)));
                instances.sort_by(|a, b| b.cmp(a));
                Self::On(instances)
            }
        }
    }
}

/// A decimal number of at most four digits, without sign.
fn number(text: &str) -> Option<u32> {
    let plain = (1..=4).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

/// Splits at each `+` outside of parentheses that a digit follows (another one begins a mark, as in `1g.18gb+me`).
/// Returns byte offsets with the pieces.
fn pieces(text: &str) -> Vec<(usize, &str)> {
    let bytes = text.as_bytes();
    let (mut depth, mut from, mut pieces) = (0_u32, 0, Vec::new());
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            b'+' if depth == 0 && bytes.get(at + 1).is_some_and(u8::is_ascii_digit) => {
                pieces.push((from, &text[from..at]));
                from = at + 1;
            }
            _ => {}
        }
    }
    pieces.push((from, &text[from..]));
    pieces
}

/// Takes `7x` from the front.
fn counted(text: &str) -> Result<(usize, &str), LayoutProblem> {
    match text.split_once('x') {
        Some((digits, rest)) if digits.bytes().all(|b| b.is_ascii_digit()) => match number(digits) {
            Some(count @ 1..) if !digits.starts_with('0') => Ok((count as usize, rest)),
            _ => Err(LayoutProblem::Count(text.to_owned())),
        },
        _ => Ok((1, text)),
    }
}

/// Takes `@4` or `@4:4` from the end.
fn placed(text: &str) -> Result<(&str, Option<Place>), LayoutProblem> {
    let Some((head, place)) = text.split_once('@') else { return Ok((text, None)) };
    let (start, size) = place.split_once(':').map_or((place, None), |(start, size)| (start, Some(size)));
    let wrong = || LayoutProblem::Place(place.to_owned());
    let start = number(start).ok_or_else(wrong)?;
    let size = size.map(|size| number(size).filter(|size| *size > 0).ok_or_else(wrong)).transpose()?;
    Ok((head, Some(Place { start, size })))
}

fn parts(text: &str) -> Result<Vec<Part>, LayoutProblem> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let mut parts = Vec::new();
    for piece in text.split('+') {
        let wrong = || LayoutProblem::Part(piece.to_owned());
        let (count, rest) = counted(piece)?;
        let (name, place) = placed(rest)?;
        let digits = name.strip_suffix('c').filter(|digits| !digits.starts_with('0')).ok_or_else(wrong)?;
        let part = Part { slices: number(digits).ok_or_else(wrong)?, place };
        add(&mut parts, part, count, place)?;
    }
    distinct(parts.iter().map(|part: &Part| part.place))?;
    Ok(parts)
}

fn add<T: Clone>(to: &mut Vec<T>, item: T, count: usize, place: Option<Place>) -> Result<(), LayoutProblem> {
    if let Some(place) = place.filter(|_| count > 1) {
        return Err(LayoutProblem::SharedPlace(place.start));
    }
    if to.len() + count > Layout::MOST {
        return Err(LayoutProblem::TooMany);
    }
    to.extend(std::iter::repeat_n(item, count));
    Ok(())
}

fn distinct(places: impl Iterator<Item = Option<Place>>) -> Result<(), LayoutProblem> {
    let mut starts: Vec<u32> = places.flatten().map(|place| place.start).collect();
    starts.sort_unstable();
    match starts.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(LayoutProblem::SharedPlace(pair[0])),
        None => Ok(()),
    }
}

/// One item: how many, and what.
fn item(text: &str) -> Result<(usize, Instance), LayoutProblem> {
    let (head, inside) = match text.split_once('(') {
        None if text.contains(')') => return Err(LayoutProblem::Parentheses),
        None => (text, None),
        Some((head, rest)) => {
            let inside = rest.strip_suffix(')').filter(|inside| !inside.contains(['(', ')']));
            (head, Some(inside.ok_or(LayoutProblem::Parentheses)?))
        }
    };
    let (count, rest) = counted(head)?;
    let (name, place) = placed(rest)?;
    // `7x` says as little as nothing: the item is shown then.
    let nameless = || ProfileError::Malformed(text.to_owned());
    let profile: Profile = if name.is_empty() { Err(nameless()) } else { name.parse() }?;
    let mut instance = Instance { place, ..Instance::of(&profile) };
    if let Some(inside) = inside {
        if profile != instance.profile {
            return Err(LayoutProblem::PartOfPart(profile));
        }
        instance.compute = parts(inside)?;
        let wanted = instance.compute.iter().map(|part| part.slices).sum();
        if wanted > profile.slices() {
            return Err(LayoutProblem::TooManyParts { wanted, there: profile.slices(), profile });
        }
    }
    Ok((count, instance))
}

impl FromStr for Layout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, LayoutError> {
        let error = |offset: usize, problem| {
            let at = text[..offset].chars().count() + 1;
            // A text from anywhere is repeated in errors: not all of a long one.
            let shown: String = text.chars().take(200).collect();
            LayoutError { text: shown, at, problem }
        };
        match text {
            "" => return Err(error(0, LayoutProblem::Nothing)),
            "off" => return Ok(Self::Off),
            "empty" => return Ok(Self::empty()),
            _ => {}
        }
        let mut instances: Vec<Instance> = Vec::new();
        for (offset, piece) in pieces(text) {
            let added = item(piece).and_then(|(count, instance)| {
                let place = instance.place;
                add(&mut instances, instance, count, place)?;
                distinct(instances.iter().map(|instance| instance.place))
            });
            added.map_err(|problem| error(offset, problem))?;
        }
        Ok(Self::On(instances))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}", self.start)?;
        self.size.map_or(Ok(()), |size| write!(f, ":{size}"))
    }
}

/// Items joined by `+`, runs of one counted: `3g+2x1g`.
fn joined<T: fmt::Display + PartialEq>(f: &mut fmt::Formatter<'_>, items: &[T]) -> fmt::Result {
    for (index, run) in items.chunk_by(|a, b| a == b).enumerate() {
        if index > 0 {
            f.write_str("+")?;
        }
        if run.len() > 1 {
            write!(f, "{}x", run.len())?;
        }
        write!(f, "{}", run[0])?;
    }
    Ok(())
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}c", self.slices)?;
        self.place.map_or(Ok(()), |place| place.fmt(f))
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.profile.fmt(f)?;
        self.place.map_or(Ok(()), |place| place.fmt(f))?;
        if self.is_whole() && self.compute[0].place.is_none() {
            return Ok(());
        }
        f.write_str("(")?;
        joined(f, &self.compute)?;
        f.write_str(")")
    }
}

impl fmt::Display for Layout {
    /// What can be read again: `off`, `empty`, `3g.71gb@4:4(1c@0:1+2c@1:2)+2x1g`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::On(instances) if instances.is_empty() => f.write_str("empty"),
            Self::On(instances) => joined(f, instances),
        }
    }
}

impl TryFrom<String> for Layout {
    type Error = LayoutError;

    fn try_from(text: String) -> Result<Self, LayoutError> {
        text.parse()
    }
}

impl From<Layout> for String {
    fn from(layout: Layout) -> Self {
        layout.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, written: &str, members: &[&str]) {
        let layout: Layout = text.parse().unwrap();
        assert_eq!(layout.to_string(), written);
        assert_eq!(written.parse::<Layout>().unwrap(), layout);
        let names: Vec<String> = layout.members().iter().map(Profile::to_string).collect();
        assert_eq!(names, members, "{text}");
    }

    #[test]
    fn layouts_are_read_and_written_back() {
        check("off", "off", &[]);
        check("empty", "empty", &[]);
        check("7x1g", "7x1g", &["1g"; 7]);
        check("3g+2g+1g+1g", "3g+2g+2x1g", &["3g", "2g", "1g", "1g"]);
        check("1x1g.18gb+me+2x1g.18gb", "1g.18gb+me+2x1g.18gb", &["1g.18gb+me", "1g.18gb", "1g.18gb"]);
        check("3g.71gb@4+1g@0", "3g.71gb@4+1g@0", &["3g.71gb", "1g"]);
        check("3g.71gb@4:4+1g+me@0:1", "3g.71gb@4:4+1g+me@0:1", &["3g.71gb", "1g+me"]);
        check("3g(1c+2c)", "3g(1c+2c)", &["1c.3g", "2c.3g"]);
        check("3g.20gb+me@4(3x1c)", "3g.20gb+me@4(3x1c)", &["1c.3g.20gb+me"; 3]);
        check("1c.3g.20gb", "3g.20gb(1c)", &["1c.3g.20gb"]);
        check("2x1c.3g", "2x3g(1c)", &["1c.3g", "1c.3g"]);
        check("2x3g(1c+2c)+1g", "2x3g(1c+2c)+1g", &["1c.3g", "2c.3g", "1c.3g", "2c.3g", "1g"]);
        check("3g(3c)", "3g", &["3g"]);
        check("3g()+1g()", "3g()+1g()", &["3g"; 0]);
        check("7g@0:8(4c@0:4+3c@4)", "7g@0:8(4c@0:4+3c@4)", &["4c.7g", "3c.7g"]);
        check("1g.24gb+me.all+1g.24gb-me", "1g.24gb+me.all+1g.24gb-me", &["1g.24gb+me.all", "1g.24gb-me"]);
    }

    fn check_error(text: &str, expected: &str) {
        let error = text.parse::<Layout>().unwrap_err().to_string();
        assert_eq!(error, format!("`{text}`, {expected}"));
    }

    #[test]
    fn errors_say_what_is_wrong_where_and_what_to_write() {
        let profile = |text: &str| {
            format!("`{text}` is no MIG profile; write it as `1g`, `1g.18gb`, `2g.20gb+me` or `1c.3g.20gb`")
        };
        check_error(
            "",
            "character 1: nothing is written; write `off`, `empty`, or instances such as `7x1g` or `3g+2g+1g`",
        );
        check_error("OFF", &format!("character 1: {}", profile("OFF")));
        check_error("1g++1g", &format!("character 1: {}", profile("1g+")));
        check_error("é+1x", &format!("character 1: {}", profile("é")));
        check_error("1g+0x1g", "character 4: `0x1g` does not say how many; write it as `7x1g`");
        check_error(
            "3g+1g@",
            "character 4: `@` is no place; write the first slot, as in `3g@4`, or with the size `3g@4:4`",
        );
        check_error(
            "1g@0:0",
            "character 1: `@0:0` is no place; write the first slot, as in `3g@4`, or with the size `3g@4:4`",
        );
        check_error("2x1g@3", "character 1: only one can be at `@3`; give each its own place, as in `1g@0+1g@1`");
        check_error("1g@3+2g@3", "character 6: only one can be at `@3`; give each its own place, as in `1g@0+1g@1`");
        check_error("3g(1g)", "character 1: `1g` is no compute instance; write `1c`, `2x1c` or `1c@0`");
        check_error(
            "3g(1c@1+2c@1)",
            "character 1: only one can be at `@1`; give each its own place, as in `1g@0+1g@1`",
        );
        check_error(
            "1g+3g(2c+2c)",
            "character 4: compute instances of 4 slices together do not fit into the 3 of `3g`; leave some out",
        );
        check_error(
            "1c.3g(1c)",
            "character 1: `1c.3g` is a compute instance already; write the GPU instance before the parentheses, as in \
             `3g(1c+2c)`",
        );
        for text in ["3g(1c", "3g)1c", "3g(1c)(1c)", "3g((1c))", "(1c)3g)"] {
            check_error(
                text,
                "character 1: the parentheses do not match; write the compute instances as in `3g(1c+2c)`",
            );
        }
        check_error("48x1g+1g", "character 7: more than 48 instances; no GPU has so many");
        for text in ["+", "x1g", "7x", "9999x1g", "99999x1g", "1g+", "1g,1g", "1g 1g", "empty+1g", "3g(+1c)", "3g(0c)"]
        {
            assert!(text.parse::<Layout>().is_err(), "{text}");
        }
    }

    #[test]
    fn layouts_that_ask_for_the_same_have_one_order() {
        let sorted = |text: &str| text.parse::<Layout>().unwrap().sorted().to_string();
        assert_eq!(sorted("1g+3g(1c+2c)+1g"), "3g(2c+1c)+2x1g");
        assert_eq!(sorted("1g+1g+3g(2c+1c)"), "3g(2c+1c)+2x1g");
        assert_eq!(sorted("off"), "off");
    }

    #[test]
    fn instances_are_counted() {
        for (text, written, count) in [
            ("7x1g", "7x1g", 7),
            ("1x1g", "1g", 1),
            ("3g+2g+1g+1g", "3g+2g+2x1g", 4),
            ("1g.18gb+me+2x1g.18gb", "1g.18gb+me+2x1g.18gb", 3),
            ("2x1g+me", "2x1g+me", 2),
        ] {
            let layout: Layout = text.parse().unwrap();
            assert_eq!((layout.to_string().as_str(), layout.members().len()), (written, count));
            assert_eq!(written.parse::<Layout>().unwrap(), layout);
        }
        for text in ["", "+", "0x1g", "x1g", "7x", "1g++1g", "49x1g", "48x1g+1g", "9999x1g", "99999x1g", "1g+", "1g,1g"]
        {
            assert!(text.parse::<Layout>().is_err(), "{text}");
        }
        let sorted = |text: &str| text.parse::<Layout>().unwrap().sorted();
        assert_eq!(sorted("1g+3g"), sorted("3g+1g"));
    }
}

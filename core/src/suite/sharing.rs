//! The `sharing` key: names, tables with options, lists of either, and which cohorts each can hold.

use toml::de::DeValue;

use crate::mig::profile::ProfileList;
use crate::suite::Target;
use crate::suite::problem::Problem;
use crate::suite::reader::{At, Faults, Fields, Place, Value, kind, one_or_many, small, string};
use crate::trial::Sharing;
use crate::workload::UnknownName;

const MODES: [&str; 5] = ["exclusive", "time-slice", "mps", "mig", "cpu"];
const KEYS: &[&str] = &["mode", "active-thread-percentage", "layout"];

/// A way of sharing as it was written; a MIG layout is not yet fitted to a cohort.
#[derive(Debug, Clone)]
pub(super) enum Wanted {
    Plain(Sharing),
    Mig(ProfileList),
}

fn mode(text: &str, place: &Place, faults: &mut Faults<'_>) -> Option<&'static str> {
    let found = MODES.iter().copied().find(|known| *known == text);
    if found.is_none() {
        let problem = match text.starts_with("mps@") {
            true => Problem::MpsShorthand,
            false => {
                Problem::Name { key: "sharing", reason: UnknownName { text: text.to_owned(), known: MODES.to_vec() } }
            }
        };
        faults.add(place, problem);
    }
    found
}

fn plain(mode: &str) -> Option<Sharing> {
    Some(match mode {
        "exclusive" => Sharing::Exclusive,
        "time-slice" => Sharing::TimeSlice,
        "mps" => Sharing::Mps { active_thread_percentage: None },
        "cpu" => Sharing::Cpu,
        _ => return None,
    })
}

fn layout(value: &Value<'_>, faults: &mut Faults<'_>) -> Option<ProfileList> {
    match string("layout", value, faults)?.parse() {
        Ok(list) => Some(list),
        Err(reason) => {
            faults.add(&value.span(), Problem::Layout(reason));
            None
        }
    }
}

/// One name or table; options that are lists give several.
fn one(value: &Value<'_>, faults: &mut Faults<'_>) -> Option<Vec<Wanted>> {
    let text = match value.get_ref() {
        DeValue::String(text) => text.as_ref(),
        DeValue::Table(_) => return table(value, faults),
        other => {
            let wanted = "a name such as \"mps\", a table with `mode`, or a list of these";
            faults.add(&value.span(), Problem::Type { what: "`sharing`".to_owned(), wanted, found: kind(other) });
            return None;
        }
    };
    let mode = mode(text, &value.span(), faults)?;
    match plain(mode) {
        Some(sharing) => Some(vec![Wanted::Plain(sharing)]),
        None => {
            faults.add(&value.span(), Problem::BareMig);
            None
        }
    }
}

fn table(value: &Value<'_>, faults: &mut Faults<'_>) -> Option<Vec<Wanted>> {
    let fields = Fields::of_value(value, "a sharing", KEYS, faults)?;
    let written = fields.need("mode", "mode = \"mps\"", faults)?;
    let mode = mode(string("mode", written, faults)?, &written.span(), faults)?;
    for (key, home) in [("active-thread-percentage", "mps"), ("layout", "mig")] {
        if let Some(foreign) = fields.get(key).filter(|_| mode != home) {
            faults.add(&foreign.span(), Problem::ForeignOption { key, home, mode });
        }
    }
    match (mode, fields.get("active-thread-percentage")) {
        ("mig", _) => {
            let written = fields.need("layout", "layout = \"7x1g\"", faults)?;
            let layouts = one_or_many("layout", written, faults, layout)?;
            Some(layouts.into_iter().map(|layout| Wanted::Mig(layout.value)).collect())
        }
        ("mps", Some(written)) => {
            let key = "active-thread-percentage";
            let caps = one_or_many(key, written, faults, |value, faults| small(key, 1..=100, value, faults))?;
            let mps = |cap: At<u32>| Wanted::Plain(Sharing::Mps { active_thread_percentage: Some(cap.value) });
            Some(caps.into_iter().map(mps).collect())
        }
        (mode, _) => plain(mode).map(|sharing| vec![Wanted::Plain(sharing)]),
    }
}

/// Reads the `sharing` key, in the order in which it is written.
pub(super) fn read(value: &Value<'_>, faults: &mut Faults<'_>) -> Option<Vec<At<Wanted>>> {
    let groups = one_or_many("sharing", value, faults, one)?;
    let all: Vec<At<Wanted>> = groups
        .into_iter()
        .flat_map(|group| group.value.into_iter().map(move |value| At { value, place: group.place.clone() }))
        .collect();
    let on_cpu = all.iter().filter(|wanted| wanted.value.target() == Target::Cpu).count();
    if on_cpu > 0 && on_cpu < all.len() {
        faults.add(&value.span(), Problem::MixedTargets);
        return None;
    }
    Some(all)
}

impl Wanted {
    pub(super) fn target(&self) -> Target {
        match self {
            Self::Plain(sharing) => Target::of(sharing),
            Self::Mig(_) => Target::Gpu,
        }
    }

    /// The sharing of a cohort of so many members. A layout of one profile gives each member an instance of it.
    pub(super) fn fit(&self, members: usize) -> Result<Sharing, Problem> {
        match self {
            Self::Plain(Sharing::Exclusive) if members != 1 => Err(Problem::ExclusiveCrowd(members)),
            Self::Plain(sharing) => Ok(sharing.clone()),
            Self::Mig(layout) => {
                let fitted = match layout.as_slice() {
                    [profile] => ProfileList::repeated(profile, members),
                    instances if members <= instances.len() => Some(layout.clone()),
                    _ => None,
                };
                let too_few = || Problem::TooFewInstances {
                    members,
                    layout: layout.to_string(),
                    instances: layout.as_slice().len(),
                };
                fitted.map(|layout| Sharing::Mig { layout: layout.to_string() }).ok_or_else(too_few)
            }
        }
    }
}

//! The `sharing` key: names, tables with options, lists of either, and which cohorts each can hold.

use toml::de::DeValue;

use crate::mig::layout::{Instance, Layout};
use crate::suite::Target;
use crate::suite::problem::Problem;
use crate::suite::reader::{At, Faults, Fields, Place, Value, kind, one_or_many, small, string};
use crate::trial::{InstanceMps, Sharing};
use crate::workload::UnknownName;

const MODES: [&str; 5] = ["exclusive", "time-slice", "mps", "mig", "cpu"];
const KEYS: &[&str] = &["mode", "active-thread-percentage", "layout", "clients"];

/// A way of sharing as it was written; a MIG layout is not yet fitted to a cohort.
#[derive(Debug, Clone)]
pub(super) enum Wanted {
    Plain(Sharing),
    Mig(Layout, Option<InstanceMps>),
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

/// A layout on which something can run.
fn layout(value: &Value<'_>, faults: &mut Faults<'_>) -> Option<Layout> {
    let text = string("layout", value, faults)?;
    let problem = match text.parse::<Layout>() {
        Ok(layout) if layout.instances().is_empty() => Problem::NoInstances(text.to_owned()),
        Ok(layout) => match layout.instances().iter().find(|instance| instance.compute.is_empty()) {
            Some(half) => Problem::HalfMade(half.profile.clone()),
            None => return Some(layout),
        },
        Err(reason) => Problem::Layout(reason),
    };
    faults.add(&value.span(), problem);
    None
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
    let homes: [(&str, &[&str]); 3] =
        [("active-thread-percentage", &["mps", "mig"]), ("layout", &["mig"]), ("clients", &["mig"])];
    for (key, homes) in homes {
        if let Some(foreign) = fields.get(key).filter(|_| !homes.contains(&mode)) {
            faults.add(&foreign.span(), Problem::ForeignOption { key, home: homes[0], mode });
        }
    }
    let percent = "active-thread-percentage";
    let caps = match fields.get(percent) {
        None => None,
        Some(written) => {
            Some(one_or_many(percent, written, faults, |value, faults| small(percent, 1..=100, value, faults))?)
        }
    };
    // None stands for "no cap": one way, as a cap would be.
    let caps: Vec<Option<u32>> =
        caps.map_or_else(|| vec![None], |caps| caps.into_iter().map(|cap: At<u32>| Some(cap.value)).collect());
    match mode {
        "mig" => {
            let written = fields.need("layout", "layout = \"7x1g\"", faults)?;
            let layouts = one_or_many("layout", written, faults, layout)?;
            let clients = match fields.get("clients") {
                Some(written) => {
                    let clients = one_or_many("clients", written, faults, |value, faults| {
                        small("clients", 1..=48, value, faults)
                    })?;
                    clients.into_iter().map(|clients: At<u32>| Some(clients.value)).collect()
                }
                None => {
                    if let Some(cap) = fields.get(percent) {
                        faults.add(&cap.span(), Problem::CapWithoutClients);
                    }
                    vec![None]
                }
            };
            let mut all = Vec::new();
            for layout in layouts {
                for clients in &clients {
                    let of = |cap: &Option<u32>| {
                        clients.map(|clients| InstanceMps { clients, active_thread_percentage: *cap })
                    };
                    all.extend(caps.iter().map(|cap| Wanted::Mig(layout.value.clone(), of(cap))));
                }
            }
            Some(all)
        }
        "mps" => {
            let mps = |active_thread_percentage| Wanted::Plain(Sharing::Mps { active_thread_percentage });
            Some(caps.into_iter().map(mps).collect())
        }
        mode => plain(mode).map(|sharing| vec![Wanted::Plain(sharing)]),
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
            Self::Mig(..) => Target::Gpu,
        }
    }

    /// The sharing of a cohort of so many members. A layout of one instance gives as many of it as the members need.
    pub(super) fn fit(&self, members: usize) -> Result<Sharing, Problem> {
        match self {
            Self::Plain(Sharing::Exclusive) if members != 1 => Err(Problem::ExclusiveCrowd(members)),
            Self::Plain(sharing) => Ok(sharing.clone()),
            Self::Mig(layout, mps) => {
                let each = mps.map_or(1, |mps| mps.clients as usize);
                let needed = members.div_ceil(each);
                let room = layout.members().len();
                let fitted = match layout.instances() {
                    [Instance { profile, place: None, compute }] if compute.len() == 1 && needed > 1 => {
                        let part = profile.part(compute[0].slices);
                        part.and_then(|profile| Layout::repeated(&profile, needed))
                    }
                    _ if needed <= room => Some(layout.clone()),
                    _ => None,
                };
                let too_few =
                    || Problem::TooFewInstances { members, layout: layout.to_string(), instances: room, clients: each };
                fitted.map(|layout| Sharing::Mig { layout: layout.to_string(), mps: *mps }).ok_or_else(too_few)
            }
        }
    }
}

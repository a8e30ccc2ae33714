//! What happens in a run: from the seed alone.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

/// What is on the GPU before the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// MIG is off.
    Off,
    /// MIG is on, and there is nothing.
    Empty,
    /// MIG is on, with instances of somebody else.
    Foreign,
    /// The same, which may be replaced.
    Replaced,
    /// MIG is off, and an earlier daemon, helper and machine ended with the layout changed.
    Stale,
}

/// What is done to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blow {
    /// kill -9 of the daemon.
    Daemon,
    /// kill -9 of the helper.
    Helper,
    /// kill -9 of a worker, where one runs.
    Worker,
    /// kill -9 of daemon and helper.
    Both,
    /// Everything ends at once, and the machine starts again.
    Reboot,
    /// The same, and another manager of MIG creates its instances again before anything of ours runs.
    RebootWithManager,
}

const STARTS: [Start; 5] = [Start::Off, Start::Empty, Start::Foreign, Start::Replaced, Start::Stale];
const BLOWS: [Blow; 6] = [Blow::Daemon, Blow::Helper, Blow::Worker, Blow::Both, Blow::Reboot, Blow::RebootWithManager];
/// A job takes about so long.
const LONGEST_DELAY_MS: u64 = 6_000;
/// A change of the layout takes about so long.
const CHANGE_MS: u64 = 60;

/// When it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// So long after the job was submitted.
    After(Duration),
    /// So long after the layout was seen to change for the nth time: most likely while it changes.
    Change { nth: u64, after: Duration },
}

/// One run.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) number: u64,
    pub(crate) model: &'static str,
    pub(crate) start: Start,
    pub(crate) blow: Blow,
    pub(crate) moment: Moment,
}

/// splitmix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Case {
    /// Starts and blows take turns, so that each pair comes once in thirty runs; the instant is random.
    pub(crate) fn of(seed: u64, number: u64) -> Self {
        let mut state = seed.wrapping_mul(0x0000_0100_0000_01b3) ^ number;
        let at = |number: u64, count: usize| usize::try_from(number).expect("few runs") % count;
        Self {
            number,
            model: ["H200-141", "A100-80"][at(random(&mut state), 2)],
            start: STARTS[at(number, STARTS.len())],
            blow: BLOWS[at(number, BLOWS.len())],
            moment: match random(&mut state) % 2 {
                0 => Moment::After(Duration::from_millis(random(&mut state) % LONGEST_DELAY_MS)),
                _ => Moment::Change {
                    nth: 1 + random(&mut state) % 12,
                    after: Duration::from_micros(random(&mut state) % (CHANGE_MS * 1000)),
                },
            },
        }
    }

    /// The GPU as the machine boots it.
    pub(crate) fn gpu(&self) -> Value {
        let small = if self.model == "H200-141" { "1g.18gb" } else { "1g.10gb" };
        let large = if self.model == "H200-141" { "3g.71gb" } else { "3g.40gb" };
        let instances = match self.start {
            Start::Off | Start::Stale => return json!({ "model": self.model }),
            Start::Empty => json!([]),
            Start::Foreign => json!([{ "profile": small, "start": 6 }]),
            Start::Replaced => json!([{ "profile": large, "start": 4 }, { "profile": small, "start": 0 }]),
        };
        json!({ "model": self.model, "mig": "enabled", "instances": instances })
    }

    /// What the job measures: layouts that need changes, and the whole GPU where it may be had.
    pub(crate) fn suite(&self) -> String {
        let layouts = match self.start {
            Start::Foreign => r#""2g", "3g+1g""#,
            _ => r#""2g", "3g+3g""#,
        };
        let whole = if self.start == Start::Foreign { "" } else { "[[trial]]\nsharing = \"exclusive\"\n" };
        let work = "workload = { model = \"empty\", task = \"infer\", batch-size = 1 }\n";
        let whole = if whole.is_empty() { String::new() } else { format!("{whole}{work}") };
        format!(
            "version = 1\nname = \"chaos\"\n[defaults]\nwarmup-batches = 1\nwarmup = \"0ms\"\nsettle = \"500ms\"\n\
             window = \"100ms\"\nlongest-window = \"100ms\"\nminimum-batches = 1\n{whole}\
             [[trial]]\nsharing = {{ mode = \"mig\", layout = [{layouts}] }}\n{work}"
        )
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, model, start, blow, moment } = self;
        write!(f, "run {number}: {model}, {start:?}, {blow:?}, {moment:?}")
    }
}

//! A job as the daemon tells of it: its row in `ListJobs`, and the `Progress` of a live one.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use migperf_core::job::JobState;
use migperf_dbus::Keyed;
use migperf_dbus::names::job as key;
use serde_json::{Map, Value};
use zbus::Variant;

use crate::exit::Exit;

/// Where a job stands. What is not known is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) id: Option<u32>,
    pub(crate) uid: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) owner: Option<u32>,
    /// Absent too if the daemon knows states that this program doesn't.
    pub(crate) state: Option<JobState>,
    pub(crate) reason: Option<String>,
    /// Microseconds since the epoch.
    pub(crate) submitted: Option<u64>,
    /// Microseconds since the epoch.
    pub(crate) ended: Option<u64>,
    pub(crate) trials_total: Option<u32>,
    pub(crate) trials_done: Option<u32>,
    pub(crate) trials_failed: Option<u32>,
    pub(crate) trial: Option<String>,
    pub(crate) phase: Option<String>,
    /// Microseconds since the epoch.
    pub(crate) estimated_end: Option<u64>,
}

fn text(values: &Keyed, key: &str) -> Option<String> {
    match &**values.get(key)? {
        Variant::Str(text) => Some(text.as_str().to_owned()),
        _ => None,
    }
}

fn number(values: &Keyed, key: &str) -> Option<u64> {
    match &**values.get(key)? {
        Variant::U32(number) => Some((*number).into()),
        Variant::U64(number) => Some(*number),
        _ => None,
    }
}

fn small(values: &Keyed, key: &str) -> Option<u32> {
    number(values, key).and_then(|number| number.try_into().ok())
}

impl From<&Keyed> for Standing {
    fn from(values: &Keyed) -> Self {
        Self {
            id: small(values, key::ID),
            uid: text(values, key::UID),
            name: text(values, key::NAME),
            owner: small(values, key::OWNER),
            state: text(values, key::STATE).and_then(|name| JobState::from_name(&name)),
            reason: text(values, key::REASON),
            submitted: number(values, key::SUBMITTED_USEC),
            ended: number(values, key::ENDED_USEC),
            trials_total: small(values, key::TRIALS_TOTAL),
            trials_done: small(values, key::TRIALS_DONE),
            trials_failed: small(values, key::TRIALS_FAILED),
            trial: text(values, key::TRIAL),
            phase: text(values, key::PHASE),
            estimated_end: number(values, key::ESTIMATED_END_USEC),
        }
    }
}

impl Standing {
    /// The state's name; `unknown` for one that this program does not know.
    pub(crate) fn state_name(&self) -> &'static str {
        self.state.map_or("unknown", JobState::name)
    }

    /// Whether nothing more will happen to it.
    pub(crate) fn is_final(&self) -> bool {
        self.state.is_some_and(JobState::is_final)
    }

    /// Trials that ended and trials planned, as `3/10`.
    pub(crate) fn trials(&self) -> String {
        let shown = |count: Option<u32>| count.map_or("?".to_owned(), |count| count.to_string());
        format!("{}/{}", shown(self.trials_done), shown(self.trials_total))
    }

    /// The estimated time from `now` to its end, to the second.
    pub(crate) fn time_left(&self, now: SystemTime) -> Option<Duration> {
        let end = UNIX_EPOCH + Duration::from_micros(self.estimated_end?);
        let left = end.duration_since(now).unwrap_or_default();
        Some(Duration::from_secs(left.as_secs()))
    }

    /// How a command ends that followed it to its end.
    pub(crate) fn exit(&self) -> Exit {
        match self.state {
            Some(JobState::Done) if self.trials_failed.unwrap_or(0) > 0 => Exit::Invalid,
            Some(JobState::Done) => Exit::Valid,
            Some(JobState::Cancelled) => Exit::Cancelled,
            _ => Exit::Failure,
        }
    }
}

/// The values as they came, for `--json`: the keys of the interface, and more where the daemon is newer.
pub(crate) fn to_json(values: &Keyed) -> Value {
    let mut entries: Vec<(&String, Value)> = values
        .iter()
        .filter_map(|(key, value)| {
            let value = match &**value {
                Variant::Bool(value) => Value::from(*value),
                Variant::U32(value) => Value::from(*value),
                Variant::U64(value) => Value::from(*value),
                Variant::I32(value) => Value::from(*value),
                Variant::I64(value) => Value::from(*value),
                Variant::F64(value) => Value::from(*value),
                Variant::Str(value) => Value::from(value.as_str()),
                _ => return None,
            };
            Some((key, value))
        })
        .collect();
    entries.sort_by_key(|(key, _)| *key);
    entries.into_iter().map(|(key, value)| (key.clone(), value)).collect::<Map<String, Value>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbus::OwnedVariant;

    fn keyed(entries: &[(&str, Variant<'static>)]) -> Keyed {
        let owned = |value: &Variant<'static>| OwnedVariant::try_from(value.try_clone().unwrap()).unwrap();
        entries.iter().map(|(key, value)| ((*key).to_owned(), owned(value))).collect()
    }

    #[test]
    fn rows_are_read_by_their_documented_types() {
        let values = keyed(&[
            (key::ID, Variant::U32(7)),
            (key::STATE, "running".into()),
            (key::TRIALS_DONE, Variant::U32(3)),
            (key::TRIALS_TOTAL, Variant::U32(10)),
            (key::SUBMITTED_USEC, Variant::U64(1_700_000_000_000_000)),
            (key::NAME, Variant::U32(1)),
        ]);
        let standing = Standing::from(&values);
        assert_eq!(standing.id, Some(7));
        assert_eq!(standing.state, Some(JobState::Running));
        assert_eq!(standing.trials(), "3/10");
        assert_eq!(standing.submitted, Some(1_700_000_000_000_000));
        assert_eq!(standing.name, None, "a value of another type is not guessed at");
        assert_eq!(to_json(&values)["trials-done"], 3);
    }

    #[test]
    fn a_state_of_a_newer_daemon_is_unknown_and_not_final() {
        let standing = Standing::from(&keyed(&[(key::STATE, "paused".into())]));
        assert_eq!(standing.state_name(), "unknown");
        assert!(!standing.is_final());
    }

    #[test]
    fn the_time_left_never_goes_below_zero() {
        let standing = Standing { estimated_end: Some(90_500_000), ..Standing::default() };
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(standing.time_left(at(30)), Some(Duration::from_secs(60)));
        assert_eq!(standing.time_left(at(91)), Some(Duration::ZERO));
    }

    #[test]
    fn the_end_of_a_job_decides_the_exit_code() {
        let exit = |state, failed| {
            Standing { state: Some(state), trials_failed: Some(failed), ..Standing::default() }.exit().code()
        };
        assert_eq!(exit(JobState::Done, 0), 0);
        assert_eq!(exit(JobState::Done, 1), 6);
        assert_eq!(exit(JobState::Cancelled, 0), 130);
        assert_eq!(exit(JobState::Failed, 0), 1);
        assert_eq!(exit(JobState::Interrupted, 0), 1);
    }
}

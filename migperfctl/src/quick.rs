//! A one-off from the command line: options in, the text of a suite out. The suite's own parser judges it.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::str::FromStr;

use clap::Args;
use migperf_core::mig::layout::Layout;
use migperf_core::suite::{MOST_MEMBERS, Target};
use migperf_core::trial::Sharing;
use migperf_core::units::Span;
use migperf_core::workload::{Model, Precision, Task, UnknownName, Workload};

/// What is measured without a suite file. Lists are combined: every model with every task with every batch size...
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "A one-off, instead of a suite file")]
#[group(id = "quick", multiple = true)]
pub(crate) struct Quick {
    /// Models: resnet18, resnet34, resnet50, resnet101, resnet152, bert-base, bert-large, distilbert, roberta-base,
    /// vit-b-16, vit-l-16, sd15-unet, ddpm-unet
    #[arg(long = "model", value_name = "MODEL", value_delimiter = ',')]
    pub(crate) models: Vec<Model>,
    /// What is done with them: infer, train
    #[arg(long = "task", value_name = "TASK", value_delimiter = ',', default_value = "infer", requires = "models")]
    pub(crate) tasks: Vec<Task>,
    /// Items in a batch
    #[arg(long = "batch", value_name = "ITEMS", value_delimiter = ',', default_value = "1", requires = "models",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(Workload::LARGEST_BATCH)))]
    pub(crate) batch_sizes: Vec<u32>,
    /// Tokens in a sequence, of models that take sequences
    #[arg(long = "sequence-length", value_name = "TOKENS", value_delimiter = ',', requires = "models",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) sequence_lengths: Vec<u32>,
    /// Arithmetic: fp32, tf32, bf16, fp16
    #[arg(
        long = "precision",
        value_name = "PRECISION",
        value_delimiter = ',',
        default_value = "fp32",
        requires = "models"
    )]
    pub(crate) precisions: Vec<Precision>,
    /// How workers share the device: exclusive, time-slice, mps, mps@PERCENT, mig:PROFILE, cpu
    ///
    /// Without it: exclusive for one worker and time-slice for more where there is a GPU, else cpu.
    #[arg(long = "sharing", value_name = "MODE", value_delimiter = ',', requires = "models")]
    pub(crate) sharings: Vec<QuickSharing>,
    /// How many workers run together; exclusive is always one
    #[arg(long = "workers", value_name = "N", value_delimiter = ',', default_value = "1", requires = "models",
        value_parser = clap::value_parser!(u32).range(1..=MOST_MEMBERS as i64))]
    pub(crate) workers: Vec<u32>,
    /// How long batches are counted, such as 45s
    #[arg(long, value_name = "SPAN", requires = "models")]
    pub(crate) window: Option<Span>,
    /// How long all workers run before batches are counted, such as 3s
    #[arg(long, value_name = "SPAN", requires = "models")]
    pub(crate) settle: Option<Span>,
    /// How many fresh cohorts measure each combination
    #[arg(long, value_name = "N", requires = "models", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeats: Option<u32>,
}

/// A sharing mode as it is written on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QuickSharing(Sharing);

/// Why a text is no sharing mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QuickSharingError {
    #[error(transparent)]
    Unknown(UnknownName),
    #[error("`{0}` is not a share of the multiprocessors; write 1 to 100 percent, such as mps@14")]
    Percent(String),
    #[error("`{text}` is not a MIG profile or layout: {reason}")]
    Layout { text: String, reason: String },
    #[error("MIG needs a profile or layout, such as mig:1g or mig:3g+2g+1g")]
    BareMig,
}

impl FromStr for QuickSharing {
    type Err = QuickSharingError;

    fn from_str(text: &str) -> Result<Self, QuickSharingError> {
        if let Some(percent) = text.strip_prefix("mps@") {
            let number = percent.strip_suffix('%').unwrap_or(percent).parse().ok();
            let capped = number.filter(|number| (1..=100).contains(number));
            let capped = capped.ok_or_else(|| QuickSharingError::Percent(percent.to_owned()))?;
            return Ok(Self(Sharing::Mps { active_thread_percentage: Some(capped) }));
        }
        if let Some(layout) = text.strip_prefix("mig:") {
            return match layout.parse::<Layout>() {
                Ok(_) => Ok(Self(Sharing::mig(layout))),
                Err(error) => Err(QuickSharingError::Layout { text: layout.to_owned(), reason: error.to_string() }),
            };
        }
        match text {
            "exclusive" => Ok(Self(Sharing::Exclusive)),
            "time-slice" => Ok(Self(Sharing::TimeSlice)),
            "mps" => Ok(Self(Sharing::Mps { active_thread_percentage: None })),
            "cpu" => Ok(Self(Sharing::Cpu)),
            "mig" => Err(QuickSharingError::BareMig),
            _ => Err(QuickSharingError::Unknown(UnknownName {
                text: text.to_owned(),
                known: vec!["exclusive", "time-slice", "mps", "mps@PERCENT", "mig:PROFILE", "cpu"],
            })),
        }
    }
}

impl fmt::Display for QuickSharing {
    /// As a suite writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Sharing::Mps { active_thread_percentage: Some(percent) } => {
                write!(f, "{{ mode = \"mps\", active-thread-percentage = {percent} }}")
            }
            Sharing::Mig { layout, .. } => write!(f, "{{ mode = \"mig\", layout = \"{layout}\" }}"),
            plain => write!(f, "\"{plain}\""),
        }
    }
}

/// Workers under sharing modes, all for one kind of device.
struct Division {
    only_on: Option<Target>,
    sharings: Vec<String>,
    workers: Vec<u32>,
}

/// Why options that are well written don't go together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QuickError {
    #[error(
        "--sharing exclusive is one worker alone, and --workers has no 1; add it, or share the device: --sharing time-slice"
    )]
    ExclusiveCrowd,
    #[error("--sharing cpu and sharing modes of a GPU can't be measured in one run; run migperfctl once for each")]
    MixedTargets,
    #[error("--sequence-length is given, but no model of --model takes sequences")]
    NoSequences,
}

impl Quick {
    /// Checks what belongs to several options at once.
    pub(crate) fn check(&self) -> Result<(), QuickError> {
        let is = |wanted: &Sharing| self.sharings.iter().any(|sharing| sharing.0 == *wanted);
        let only_exclusive = is(&Sharing::Exclusive) && self.sharings.iter().all(|s| s.0 == Sharing::Exclusive);
        if only_exclusive && !self.workers.contains(&1) {
            return Err(QuickError::ExclusiveCrowd);
        }
        if is(&Sharing::Cpu) && self.sharings.iter().any(|sharing| sharing.0 != Sharing::Cpu) {
            return Err(QuickError::MixedTargets);
        }
        if !self.sequence_lengths.is_empty() && self.models.iter().all(|model| model.longest_sequence().is_none()) {
            return Err(QuickError::NoSequences);
        }
        Ok(())
    }

    /// The target that the options leave no choice of; none: what there is decides.
    pub(crate) fn target(&self) -> Option<Target> {
        self.sharings.first().map(|sharing| Target::of(&sharing.0))
    }

    /// The text of the suite that the options stand for on a target; none: on either.
    pub(crate) fn to_suite(&self, target: Option<Target>) -> String {
        let mut text = "version = 1\nname = \"one-off\"\n".to_owned();
        let spans = [("window", self.window), ("settle", self.settle)];
        let spans: Vec<_> = spans.into_iter().filter_map(|(key, span)| span.map(|span| (key, span))).collect();
        if self.repeats.is_some() || !spans.is_empty() {
            text.push_str("\n[defaults]\n");
        }
        if let Some(repeats) = self.repeats {
            let _ = writeln!(text, "repeats = {repeats}");
        }
        for (key, span) in spans {
            let _ = writeln!(text, "{key} = \"{span}\"");
        }
        for division in self.divisions(target) {
            for workload in self.workloads() {
                text.push_str("\n[[trial]]\n");
                if let Some(target) = division.only_on.filter(|_| target.is_none()) {
                    let _ = writeln!(text, "only-on = \"{target}\"");
                }
                let _ = writeln!(text, "sharing = {}", list(division.sharings.iter()));
                let _ = writeln!(text, "workers = {}", list(division.workers.iter()));
                let _ = writeln!(text, "workload = {workload}");
            }
        }
        text
    }

    /// Exclusive takes one worker whatever `--workers` says, so that `--sharing exclusive,mps --workers 4` compares.
    fn divisions(&self, target: Option<Target>) -> Vec<Division> {
        let workers: Vec<u32> = self.workers.iter().copied().collect::<BTreeSet<u32>>().into_iter().collect();
        let crowds: Vec<u32> = workers.iter().copied().filter(|count| *count > 1).collect();
        let exclusive = QuickSharing(Sharing::Exclusive);
        let of = |only_on, sharings: Vec<&QuickSharing>, workers: Vec<u32>| Division {
            only_on,
            sharings: sharings.into_iter().map(QuickSharing::to_string).collect(),
            workers,
        };
        let divisions = if self.sharings.is_empty() {
            let alone = if workers.contains(&1) { vec![1] } else { Vec::new() };
            vec![
                of(Some(Target::Gpu), vec![&exclusive], alone),
                of(Some(Target::Gpu), vec![&QuickSharing(Sharing::TimeSlice)], crowds),
                of(Some(Target::Cpu), vec![&QuickSharing(Sharing::Cpu)], workers),
            ]
        } else {
            let (alone, shared): (Vec<_>, Vec<_>) = self.sharings.iter().partition(|sharing| **sharing == exclusive);
            vec![of(None, alone, vec![1]), of(None, shared, workers)]
        };
        let here = |division: &Division| division.only_on.is_none_or(|only| target.is_none_or(|target| target == only));
        let empty = |division: &Division| division.sharings.is_empty() || division.workers.is_empty();
        divisions.into_iter().filter(|division| here(division) && !empty(division)).collect()
    }

    /// Models that take sequences apart from those that don't: only the former may be given a length.
    fn workloads(&self) -> Vec<String> {
        let (sequences, others): (Vec<Model>, Vec<Model>) =
            self.models.iter().copied().partition(|model| model.longest_sequence().is_some());
        let groups = if self.sequence_lengths.is_empty() {
            vec![(self.models.clone(), None)]
        } else {
            vec![(others, None), (sequences, Some(&self.sequence_lengths))]
        };
        let written = |(models, lengths): (Vec<Model>, Option<&Vec<u32>>)| {
            let mut text = format!(
                "{{ model = {}, task = {}, batch-size = {}, precision = {}",
                list(models.iter().map(|model| format!("\"{model}\""))),
                list(self.tasks.iter().map(|task| format!("\"{task}\""))),
                list(self.batch_sizes.iter()),
                list(self.precisions.iter().map(|precision| format!("\"{precision}\"")))
            );
            if let Some(lengths) = lengths {
                let _ = write!(text, ", sequence-length = {}", list(lengths.iter()));
            }
            text.push_str(" }");
            text
        };
        groups.into_iter().filter(|(models, _)| !models.is_empty()).map(written).collect()
    }
}

/// One value as it is, several as a list.
fn list(values: impl IntoIterator<Item = impl fmt::Display>) -> String {
    let values: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
    match values.as_slice() {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;
    use migperf_core::suite::Suite;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        quick: Quick,
    }

    fn quick(options: &str) -> Quick {
        Line::try_parse_from(std::iter::once("run").chain(options.split_whitespace())).unwrap().quick
    }

    /// What each [[trial]] of the made suite comes to, in order.
    fn check(options: &str, expected: &[&str]) {
        check_on(None, options, expected);
    }

    fn check_on(target: Option<Target>, options: &str, expected: &[&str]) {
        let quick = quick(options);
        quick.check().unwrap();
        let text = quick.to_suite(target);
        let suite = Suite::parse(&text).unwrap_or_else(|errors| panic!("{options}:\n{text}\n{errors}"));
        let cells: Vec<String> = suite
            .trials
            .iter()
            .flat_map(|trial| {
                let only_on = trial.only_on.map(|target| format!("{target}: ")).unwrap_or_default();
                trial.cells.iter().map(move |cell| format!("{only_on}{cell}"))
            })
            .collect();
        assert_eq!(cells, expected, "{options}:\n{text}");
    }

    #[test]
    fn nothing_said_of_sharing_means_what_the_device_offers() {
        check(
            "--model resnet18",
            &["gpu: exclusive: 1x resnet18 infer b1 fp32", "cpu: cpu: 1x resnet18 infer b1 fp32"],
        );
        check(
            "--model resnet18 --workers 4",
            &["gpu: time-slice: 4x resnet18 infer b1 fp32", "cpu: cpu: 4x resnet18 infer b1 fp32"],
        );
        check(
            "--model resnet18 --workers 4,1,4",
            &[
                "gpu: exclusive: 1x resnet18 infer b1 fp32",
                "gpu: time-slice: 4x resnet18 infer b1 fp32",
                "cpu: cpu: 1x resnet18 infer b1 fp32",
                "cpu: cpu: 4x resnet18 infer b1 fp32",
            ],
        );
    }

    #[test]
    fn a_known_target_leaves_nothing_out() {
        let options = "--model resnet18 --workers 1,4";
        check_on(
            Some(Target::Gpu),
            options,
            &["exclusive: 1x resnet18 infer b1 fp32", "time-slice: 4x resnet18 infer b1 fp32"],
        );
        check_on(Some(Target::Cpu), options, &["cpu: 1x resnet18 infer b1 fp32", "cpu: 4x resnet18 infer b1 fp32"]);
        assert_eq!(quick(options).target(), None);
        assert_eq!(quick("--model resnet18 --sharing mps").target(), Some(Target::Gpu));
        assert_eq!(quick("--model resnet18 --sharing cpu").target(), Some(Target::Cpu));
    }

    #[test]
    fn lists_are_combined_and_exclusive_stays_alone() {
        check(
            "--model resnet50 --task infer --batch 1,8 --sharing exclusive,mps,mps@14 --workers 1,4",
            &[
                "exclusive: 1x resnet50 infer b1 fp32",
                "exclusive: 1x resnet50 infer b8 fp32",
                "mps: 1x resnet50 infer b1 fp32",
                "mps: 1x resnet50 infer b8 fp32",
                "mps: 4x resnet50 infer b1 fp32",
                "mps: 4x resnet50 infer b8 fp32",
                "mps@14%: 1x resnet50 infer b1 fp32",
                "mps@14%: 1x resnet50 infer b8 fp32",
                "mps@14%: 4x resnet50 infer b1 fp32",
                "mps@14%: 4x resnet50 infer b8 fp32",
            ],
        );
        check(
            "--model resnet18 --sharing exclusive,time-slice --workers 2",
            &["exclusive: 1x resnet18 infer b1 fp32", "time-slice: 2x resnet18 infer b1 fp32"],
        );
        check(
            "--model resnet18 --sharing mig:1g --workers 2 --precision bf16,fp16",
            &["mig 2x1g: 2x resnet18 infer b1 bf16", "mig 2x1g: 2x resnet18 infer b1 fp16"],
        );
    }

    #[test]
    fn sequence_lengths_go_to_the_models_that_take_them() {
        check(
            "--model resnet18,bert-base --sequence-length 32,64 --sharing cpu --task train",
            &[
                "cpu: 1x resnet18 train b1 fp32",
                "cpu: 1x bert-base train b1 s32 fp32",
                "cpu: 1x bert-base train b1 s64 fp32",
            ],
        );
    }

    #[test]
    fn spans_and_repeats_reach_the_suite() {
        let suite = quick("--model resnet18 --window 45s --settle 4s --repeats 3").to_suite(None);
        let suite = Suite::parse(&suite).unwrap();
        assert_eq!(suite.repeats, 3);
        let timing = suite.trials[0].cells[0].timing;
        assert_eq!((timing.window.to_string(), timing.settle.to_string()), ("45s".to_owned(), "4s".to_owned()));
    }

    #[test]
    fn options_that_do_not_go_together_are_refused() {
        for (options, expected) in [
            ("--model resnet18 --sharing exclusive --workers 4", QuickError::ExclusiveCrowd),
            ("--model resnet18 --sharing cpu,mps", QuickError::MixedTargets),
            ("--model resnet18 --sequence-length 32", QuickError::NoSequences),
        ] {
            assert_eq!(quick(options).check(), Err(expected), "{options}");
        }
    }

    #[test]
    fn mistyped_values_are_answered_with_what_is_known() {
        for (options, expected) in [
            ("--model resnet-18", "did you mean `resnet18`?"),
            ("--model resnet18 --task trian", "did you mean `train`?"),
            ("--model resnet18 --sharing mps@0", "1 to 100 percent"),
            ("--model resnet18 --sharing mps@101%", "1 to 100 percent"),
            ("--model resnet18 --sharing mig", "mig:1g"),
            ("--model resnet18 --sharing mig:", "not a MIG profile"),
            ("--model resnet18 --sharing timeslice", "did you mean `time-slice`?"),
            ("--model resnet18 --batch 0", "0 is not in 1..=65536"),
            ("--model resnet18 --workers 49", "49 is not in 1..=48"),
            ("--model resnet18 --window 45", "write a number and a unit"),
            ("--model resnet18 --precision fp8", "fp32, tf32, bf16, fp16"),
            ("--batch 8", "--model <MODEL>"),
        ] {
            let words = std::iter::once("run").chain(options.split_whitespace());
            let message = Line::try_parse_from(words).unwrap_err().to_string();
            assert!(message.contains(expected), "{options}: {message}");
        }
    }
}

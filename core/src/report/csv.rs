//! The report's trials as RFC 4180 text: a row for each member, each group of members with the same work, and each trial
//! without numbers. Units are in the headings; a missing number is an empty field, its reason in the last column.

use super::device::DeviceReport;
use super::finding::{Central, Estimated, Finding};
use super::latency::{Latency, Quantiles};
use super::trial::{GroupReport, MemberReport, TrialReport};
use super::verdict::Verdict;
use super::view::WorkloadView;
use super::{Report, WATERMARK};

const HEADINGS: [&str; 62] = [
    "row",
    "trial",
    "cell",
    "repeat",
    "purpose",
    "sharing",
    "cohort_members",
    "member",
    "group_members",
    "workload",
    "model",
    "task",
    "batch_size",
    "sequence_length",
    "precision",
    "verdict",
    "flags",
    "verdict_reason",
    "began_utc",
    "window_s",
    "common_s",
    "common_share",
    "start_skew_us",
    "batches_counted",
    "batches_in_window",
    "batches_outside_common",
    "batches_censored",
    "batches_lost",
    "items",
    "throughput_samples_per_s",
    "throughput_low_samples_per_s",
    "throughput_high_samples_per_s",
    "article_samples_per_s",
    "requests_per_min",
    "latency_mean_ms",
    "latency_mean_low_ms",
    "latency_mean_high_ms",
    "latency_min_ms",
    "latency_max_ms",
    "latency_p50_nearest_rank_ms",
    "latency_p90_nearest_rank_ms",
    "latency_p95_nearest_rank_ms",
    "latency_p99_nearest_rank_ms",
    "latency_p99.9_nearest_rank_ms",
    "latency_p99_low_ms",
    "latency_p99_high_ms",
    "gap_share",
    "fairness",
    "allocated_peak_bytes",
    "reserved_peak_bytes",
    "device",
    "device_frame_buffer_mean_bytes",
    "device_frame_buffer_peak_bytes",
    "device_power_w",
    "device_energy_j",
    "device_energy_uncertainty_j",
    "device_energy_per_sample_j",
    "device_gract",
    "device_clock_sm_mhz",
    "device_temperature_c",
    "watermark",
    "missing",
];

/// The report as CSV.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    line(&mut text, HEADINGS.iter().copied());
    for trial in &report.trials {
        if trial.groups.is_empty() {
            Row::new("trial", trial, &mut text).end();
        }
        for member in trial.members.iter().filter(|_| !trial.groups.is_empty()) {
            member_row(trial, member, &mut text);
        }
        for group in &trial.groups {
            group_row(trial, group, &mut text);
        }
    }
    text
}

fn line<'a>(text: &mut String, fields: impl Iterator<Item = &'a str>) {
    for (at, field) in fields.enumerate() {
        if at > 0 {
            text.push(',');
        }
        if field.contains([',', '"', '\r', '\n']) {
            text.push('"');
            text.push_str(&field.replace('"', "\"\""));
            text.push('"');
        } else {
            text.push_str(field);
        }
    }
    text.push_str("\r\n");
}

/// One line by the names of its columns.
struct Row<'a> {
    fields: Vec<String>,
    missing: Vec<String>,
    text: &'a mut String,
}

impl<'a> Row<'a> {
    /// A row with what every row of a trial has.
    fn new(kind: &str, trial: &TrialReport, text: &'a mut String) -> Self {
        let mut row = Self { fields: vec![String::new(); HEADINGS.len()], missing: Vec::new(), text };
        row.set("row", kind);
        row.set("trial", &trial.trial.to_string());
        row.set("cell", &trial.cell.to_string());
        row.set("repeat", &trial.repeat.to_string());
        row.set(
            "purpose",
            match trial.purpose {
                crate::trial::Purpose::Requested => "requested",
                crate::trial::Purpose::Baseline => "baseline",
                crate::trial::Purpose::Drift => "drift",
            },
        );
        row.set("sharing", &trial.sharing.name);
        row.set("cohort_members", &trial.cohort_members.to_string());
        row.set("verdict", trial.outcome.name());
        let mut flags: Vec<&str> = trial.flags.iter().map(|flag| flag.code.code()).collect();
        flags.dedup();
        row.set("flags", &flags.join(" "));
        row.set("verdict_reason", &trial.outcome.reason().unwrap_or_default());
        if let Verdict::Invalid { faults } = &trial.outcome {
            row.missing.extend(faults.iter().map(|fault| format!("all: {}", fault.code)));
        }
        row.set("began_utc", &trial.began);
        if trial.simulated {
            row.set("watermark", WATERMARK);
        }
        if let Some(window) = &trial.window {
            row.set("window_s", &window.window_s.to_string());
            row.number("common_s", &window.common_s);
            row.number("common_share", &window.common_share);
            row.number("start_skew_us", &window.start_skew_us);
        }
        row
    }

    fn set(&mut self, heading: &str, field: &str) {
        let at = HEADINGS.iter().position(|known| *known == heading);
        debug_assert!(at.is_some(), "{heading} is no column");
        if let Some(at) = at {
            field.clone_into(&mut self.fields[at]);
        }
    }

    fn number<T: Central>(&mut self, heading: &str, finding: &Finding<T>) {
        match finding {
            Finding::Value(found) => self.set(heading, &found.central().to_string()),
            Finding::Absent(absent) => self.missing.push(format!("{heading}: {}", absent.reason)),
        }
    }

    fn interval(&mut self, low: &str, high: &str, finding: &Finding<Estimated>) {
        if let Some(bounds) = finding.value().and_then(|found| found.interval) {
            self.set(low, &bounds.low.to_string());
            self.set(high, &bounds.high.to_string());
        }
    }

    fn workload(&mut self, workload: &WorkloadView) {
        self.set("workload", &workload.name);
        self.set("model", &workload.model);
        self.set("task", &workload.task);
        self.set("batch_size", &workload.batch_size.to_string());
        self.set("sequence_length", &workload.sequence_length.map_or_else(String::new, |length| length.to_string()));
        self.set("precision", &workload.precision);
    }

    fn throughput(&mut self, rate: &Finding<Estimated>, requests: &Finding<Estimated>) {
        self.number("throughput_samples_per_s", rate);
        self.interval("throughput_low_samples_per_s", "throughput_high_samples_per_s", rate);
        self.number("requests_per_min", requests);
    }

    fn latency(&mut self, latency: &Latency) {
        self.number("latency_mean_ms", &latency.mean);
        self.interval("latency_mean_low_ms", "latency_mean_high_ms", &latency.mean);
        self.number("latency_min_ms", &latency.min);
        self.number("latency_max_ms", &latency.max);
        let Quantiles { p50, p90, p95, p99, p99_9 } = &latency.nearest_rank;
        self.number("latency_p50_nearest_rank_ms", p50);
        self.number("latency_p90_nearest_rank_ms", p90);
        self.number("latency_p95_nearest_rank_ms", p95);
        self.number("latency_p99_nearest_rank_ms", p99);
        self.number("latency_p99.9_nearest_rank_ms", p99_9);
        self.interval("latency_p99_low_ms", "latency_p99_high_ms", p99);
    }

    fn device(&mut self, device: &DeviceReport) {
        self.number("device_frame_buffer_mean_bytes", &device.frame_buffer_bytes);
        if let Some(memory) = device.frame_buffer_bytes.value() {
            self.set("device_frame_buffer_peak_bytes", &memory.peak.to_string());
        }
        self.number("device_power_w", &device.power_w);
        self.number("device_energy_j", &device.energy_j);
        if let Some(energy) = device.energy_j.value() {
            self.set("device_energy_uncertainty_j", &energy.uncertainty.to_string());
        }
        self.number("device_energy_per_sample_j", &device.energy_per_sample_j);
        self.number("device_gract", &device.gract);
        self.number("device_clock_sm_mhz", &device.clock_sm_mhz);
        self.number("device_temperature_c", &device.temperature_c);
    }

    fn end(mut self) {
        let missing = self.missing.join("; ");
        self.set("missing", &missing);
        line(self.text, self.fields.iter().map(String::as_str));
    }
}

fn member_row(trial: &TrialReport, member: &MemberReport, text: &mut String) {
    let mut row = Row::new("member", trial, text);
    row.set("member", &member.member.to_string());
    row.workload(&member.workload);
    if let Some(batches) = member.batches {
        row.set("batches_counted", &batches.counted.to_string());
        row.set("batches_in_window", &batches.in_window.to_string());
        row.set("batches_outside_common", &batches.outside_common.to_string());
        row.set("batches_censored", &batches.censored.to_string());
        row.set("batches_lost", &batches.lost.to_string());
    }
    row.number("items", &member.items);
    row.throughput(&member.throughput_samples_per_s, &member.requests_per_min);
    row.number("article_samples_per_s", &member.article_samples_per_s);
    row.latency(&member.latency_ms);
    row.number("gap_share", &member.gap_share);
    row.number("allocated_peak_bytes", &member.allocated_peak_bytes);
    row.number("reserved_peak_bytes", &member.reserved_peak_bytes);
    row.set("device", member.device.as_deref().unwrap_or("cpu"));
    row.end();
}

fn group_row(trial: &TrialReport, group: &GroupReport, text: &mut String) {
    let mut row = Row::new("group", trial, text);
    row.set("group_members", &group.members.len().to_string());
    row.workload(&group.workload);
    row.throughput(&group.throughput_samples_per_s, &group.requests_per_min);
    row.latency(&group.latency_ms);
    row.number("fairness", &group.fairness);
    row.set("device", trial.device.device.as_deref().unwrap_or(""));
    row.device(&trial.device);
    row.end();
}

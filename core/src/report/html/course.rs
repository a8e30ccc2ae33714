//! What happened when: the members' batches with their common interval, and the device meanwhile.

use super::figure::{About, Table};
use super::svg::{Anchor, COLOURS, Drawing, Scale};
use super::{Mix, Page, in_words};
use crate::report::finding::Finding;
use crate::report::series::{DeviceSeries, Series, Track};
use crate::report::text::number;
use crate::report::trial::TrialReport;

/// A trial, its series, the place of its way of sharing, and that one's name.
struct Course<'a> {
    trial: &'a TrialReport,
    series: &'a Series,
    mode: usize,
    name: String,
}

/// One quantity of the device.
type Pick = fn(&DeviceSeries) -> &Finding<Track>;

/// The courses of each cell's first repeat with numbers.
pub(super) fn plots(page: &mut Page<'_>, mix: &Mix<'_>) {
    let courses: Vec<Course<'_>> = mix
        .cells
        .iter()
        .filter_map(|cell| {
            let trial = page.usable(cell).find(|trial| trial.series.is_some())?;
            let series = trial.series.as_ref()?;
            Some(Course { trial, series, mode: page.mode(&cell.sharing), name: in_words(&cell.sharing) })
        })
        .collect();
    for course in courses.iter().filter(|course| course.series.members.len() > 1) {
        timeline(page, course);
    }
    let quantities: [(&str, &str, f64, Pick); 5] = [
        ("Power of the device", "W", 1.0, |device| &device.power_w),
        ("GRACT: graphics engine activity", "share of time", 1.0, |device| &device.gract),
        ("Clock of the multiprocessors", "MHz", 1.0, |device| &device.clock_sm_mhz),
        ("Frame buffer in use", "GiB", 1.0 / super::figure::GIB, |device| &device.frame_buffer_bytes),
        ("Temperature", "°C", 1.0, |device| &device.temperature_c),
    ];
    for (title, unit, factor, pick) in quantities {
        device(page, &courses, title, unit, factor, pick);
    }
}

/// The start of a step and its end, in seconds.
fn step(series: &Series, at: usize) -> (f64, f64) {
    let from = series.from_s + series.step_s * at as f64;
    (from, (from + series.step_s).min(series.window_s))
}

/// One lane for each member: the band from the shortest to the longest batch that ran in each step.
fn timeline(page: &mut Page<'_>, course: &Course<'_>) {
    let Course { trial, series, mode, name } = course;
    let members = series.members.len();
    let lane = if members > 12 { 14.0 } else { 26.0 };
    let (left, right, top) = (128.0, 944.0, 18.0);
    let bottom = top + lane * members as f64;
    let mut drawing = Drawing::new(960.0, bottom + 36.0);
    let x = Scale::between(series.from_s, series.window_s, left, right);
    drawing.rect((x.at(series.common_from_s), top - 4.0), (x.at(series.common_to_s), bottom), "shade");
    drawing.axis_x(&x, top, bottom, "seconds from the window's start");
    for edge in [0.0, series.window_s] {
        drawing.line((x.at(edge), top - 8.0), (x.at(edge), bottom), "edge");
    }
    drawing.text((x.at(series.common_from_s) + 4.0, top - 7.0), Anchor::Start, "ax", "common interval");
    let work = |member: u32| {
        let of = trial.members.iter().find(|known| known.member == member);
        of.map_or("", |known| known.workload.name.as_str())
    };
    let longest_of = |workload: &str| {
        let alike = series.members.iter().filter(|member| work(member.member) == workload);
        alike.flat_map(|member| &member.longest_ms).flatten().copied().fold(0.0, f64::max)
    };
    let heads = ["member", "work", "batches ended", "shortest ms", "longest ms"];
    let mut numbers = Table::new(&format!("Batches of {}, from the common start on", trial.name), &heads, &[0, 1]);
    for (place, member) in series.members.iter().enumerate() {
        let base = top + lane * (place as f64 + 1.0) - 2.0;
        let workload = work(member.member);
        let task = trial.members.iter().find(|known| known.member == member.member).map_or("", |m| &m.workload.task);
        if lane > 20.0 || place % 2 == 0 {
            drawing.text((left - 8.0, base - lane / 2.0 + 6.0), Anchor::End, "", &format!("{} {task}", member.member));
        }
        let scale = Scale::from_zero(longest_of(workload), base, base - lane + 4.0);
        for run in runs(&member.shortest_ms, &member.longest_ms) {
            let mut upper = Vec::new();
            let mut lower = Vec::new();
            for at in run {
                let (from, to) = step(series, at);
                let (low, high) = (member.shortest_ms[at].unwrap_or(0.0), member.longest_ms[at].unwrap_or(0.0));
                upper.extend([(x.at(from), scale.at(high)), (x.at(to), scale.at(high))]);
                lower.extend([(x.at(from), scale.at(low) + 0.8), (x.at(to), scale.at(low) + 0.8)]);
            }
            let ends = upper.first().zip(upper.last()).map(|(first, last)| (first.0, last.0));
            if let Some((from, to)) = ends {
                let mut below = lower.clone();
                below.extend([(to, base), (from, base)]);
                drawing.polygon(&below, &format!("f{} band", mode % COLOURS));
            }
            upper.extend(lower.into_iter().rev());
            drawing.polygon(&upper, &format!("f{}", mode % COLOURS));
        }
        drawing.line((left, base), (right, base), "gr");
        let extreme = |values: &[Option<f64>], pick: fn(f64, f64) -> f64| {
            values.iter().flatten().copied().reduce(pick).map_or_else(|| "–".to_owned(), number)
        };
        numbers.push(vec![
            member.member.to_string(),
            super::escape(workload),
            member.ended.iter().sum::<u32>().to_string(),
            extreme(&member.shortest_ms, f64::min),
            extreme(&member.longest_ms, f64::max),
        ]);
    }
    let caption = format!(
        "Trial {}, from the common start to the window's end (dotted lines: the window). In each of {} steps a band from the \
         shortest to the longest batch that ran in it (in full colour), so that no stall is lost; its height is latency, from zero at the \
         lane's foot, alike for like work. Nothing drawn: nothing ran. Shaded: the common interval, whose whole batches are counted.",
        trial.trial, series.steps
    );
    let description = format!(
        "Timeline with a lane for each of {members} members. The common interval runs from {:.2} to {:.2} s of a window of {:.2} s.",
        series.common_from_s, series.common_to_s, series.window_s
    );
    let about = About {
        title: &format!("Batches over time, {name}"),
        description: &description,
        caption: &caption,
        whole: true,
    };
    page.figure(&about, drawing, Some(&numbers));
}

/// Steps one after another that have values.
fn runs(low: &[Option<f64>], high: &[Option<f64>]) -> Vec<std::ops::Range<usize>> {
    let there = |at: usize| low[at].is_some() && high[at].is_some();
    let mut runs = Vec::new();
    let mut begin = None;
    for at in 0..=low.len().min(high.len()) {
        let is_there = at < low.len().min(high.len()) && there(at);
        match (begin, is_there) {
            (None, true) => begin = Some(at),
            (Some(from), false) => {
                runs.push(from..at);
                begin = None;
            }
            _ => {}
        }
    }
    runs
}

/// One quantity of the device in every way of sharing.
fn device(page: &mut Page<'_>, courses: &[Course<'_>], title: &str, unit: &str, factor: f64, pick: Pick) {
    let tracks: Vec<(&Course<'_>, &Track)> =
        courses.iter().filter_map(|course| Some((course, pick(&course.series.device).value()?))).collect();
    let highs = tracks.iter().flat_map(|(_, track)| track.high.iter().flatten());
    let lows = tracks.iter().flat_map(|(_, track)| track.low.iter().flatten());
    let (Some(high), Some(low)) = (highs.copied().reduce(f64::max), lows.copied().reduce(f64::min)) else { return };
    let (left, right, top, bottom) = (48.0, 466.0, 22.0, 150.0);
    let mut drawing = Drawing::new(480.0, bottom + 36.0);
    let from = tracks.iter().map(|(course, _)| course.series.from_s).fold(0.0, f64::min);
    let to = tracks.iter().map(|(course, _)| course.series.window_s).fold(0.0, f64::max);
    let x = Scale::between(from, to, left, right);
    let y = Scale::from_zero(high * factor, bottom, top);
    drawing.axis_x(&x, top, bottom, "seconds from the window's start");
    drawing.axis_y(&y, left, right, unit);
    drawing.line((x.at(0.0), top), (x.at(0.0), bottom), "edge");
    let mut numbers = Table::new(&format!("{title}, {unit}"), &["sharing", "least", "most"], &[0]);
    for (course, track) in &tracks {
        let class = course.mode % COLOURS;
        let known = track.low.iter().zip(&track.high).enumerate();
        let known: Vec<(f64, f64, f64)> = known
            .filter_map(|(at, (low, high))| {
                let (from, to) = step(course.series, at);
                Some((x.at(f64::midpoint(from, to)), y.at((*low)? * factor), y.at((*high)? * factor)))
            })
            .collect();
        let mut band: Vec<(f64, f64)> = known.iter().map(|(at, _, high)| (*at, *high)).collect();
        band.extend(known.iter().rev().map(|(at, low, _)| (*at, *low)));
        drawing.polygon(&band, &format!("f{class} band"));
        let middle: Vec<(f64, f64)> = known.iter().map(|(at, low, high)| (*at, f64::midpoint(*low, *high))).collect();
        drawing.polyline(&middle, &format!("l s{class}"));
        let extreme = |values: &[Option<f64>], pick: fn(f64, f64) -> f64| {
            values.iter().flatten().map(|value| value * factor).reduce(pick).map_or_else(|| "–".to_owned(), number)
        };
        numbers.push(vec![super::escape(&course.name), extreme(&track.low, f64::min), extreme(&track.high, f64::max)]);
    }
    let description = format!(
        "Lines over time, one for each way of sharing, between {} and {} {unit}.",
        number(low * factor),
        number(high * factor)
    );
    let about = About {
        title,
        description: &description,
        caption: "The first repeat of each way of sharing. Band: least to most sample of each step; line: its middle. Dotted: the window's start.",
        whole: false,
    };
    page.figure(&about, drawing, Some(&numbers));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_part_runs() {
        let values = [None, Some(1.0), Some(1.0), None, Some(1.0)];
        assert_eq!(runs(&values, &values), [1..3, 4..5]);
        assert!(runs(&[], &[]).is_empty());
    }
}

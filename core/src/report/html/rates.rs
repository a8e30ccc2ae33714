//! How much gets done and what it costs: throughput together and of each member, energy, and both against batch size
//! and the number of workers.

use super::figure::{About, Table, estimate};
use super::latency::{short, workloads};
use super::svg::{Anchor, COLOURS, Drawing, Scale, label};
use super::{Mix, Page, in_words};
use crate::report::cell::{CellGroup, CellReport, over_repeats};
use crate::report::finding::{Estimated, Finding};
use crate::report::text::number;

const WIDTH: f64 = 480.0;
const LEFT: f64 = 128.0;
const RIGHT: f64 = 430.0;

/// Throughput together and by member of each kind of work, and energy.
pub(super) fn plots(page: &mut Page<'_>, mix: &Mix<'_>) {
    for (place, workload) in workloads(mix) {
        let bars: Vec<Bar<'_>> = mix
            .cells
            .iter()
            .filter_map(|cell| Some(Bar { cell, found: &cell.groups.get(place)?.throughput_samples_per_s }))
            .collect();
        let title = format!("Throughput of {workload}, all members together");
        let caption = "Whisker: 95 % interval, between cohorts if there are repeats; none where one window gives none.";
        bar_chart(page, &title, "samples/s", caption, &bars);
        members(page, mix, place, &workload);
    }
    let energy: Vec<Bar<'_>> = mix.cells.iter().map(|cell| Bar { cell, found: &cell.energy_per_sample_j }).collect();
    if energy.iter().any(|bar| bar.found.number().is_some()) {
        bar_chart(
            page,
            "Energy of the device per sample",
            "J/sample",
            "The whole device's energy, whoever used it.",
            &energy,
        );
    } else {
        let power: Vec<Bar<'_>> = mix.cells.iter().map(|cell| Bar { cell, found: &cell.power_w }).collect();
        let caption =
            "Energy per sample does not exist where work is unlike: items of one kind are not items of another.";
        bar_chart(page, "Power of the device", "W", caption, &power);
    }
}

struct Bar<'a> {
    cell: &'a CellReport,
    found: &'a Finding<Estimated>,
}

fn highest<'a>(findings: impl Iterator<Item = &'a Finding<Estimated>>) -> f64 {
    findings
        .filter_map(Finding::value)
        .map(|found| found.interval.map_or(found.value, |bounds| bounds.high.max(found.value)))
        .fold(0.0, f64::max)
}

/// Horizontal bars from zero. A plot without any number is left out: the table above has the reasons.
fn bar_chart(page: &mut Page<'_>, title: &str, unit: &str, caption: &str, bars: &[Bar<'_>]) {
    if bars.iter().all(|bar| bar.found.number().is_none()) {
        return;
    }
    let (top, row) = (6.0, 30.0);
    let bottom = top + row * bars.len() as f64;
    let mut drawing = Drawing::new(WIDTH, bottom + 36.0);
    let scale = Scale::from_zero(highest(bars.iter().map(|bar| bar.found)), LEFT, RIGHT);
    drawing.axis_x(&scale, top, bottom, unit);
    let mut said = Vec::new();
    let mut numbers = Table::new(title, &["sharing", unit], &[0]);
    for (place, bar) in bars.iter().enumerate() {
        let y = top + row * (place as f64 + 0.5);
        let name = in_words(&bar.cell.sharing);
        drawing.text((LEFT - 8.0, y + 4.0), Anchor::End, "", &short(&name));
        numbers.push(vec![super::escape(&name), estimate(bar.found, 1.0)]);
        let Some(found) = bar.found.value() else {
            drawing.text((LEFT + 4.0, y + 4.0), Anchor::Start, "ax", "no number");
            continue;
        };
        let class = format!("f{} b", page.mode(&bar.cell.sharing) % COLOURS);
        drawing.rect((LEFT, y - 9.0), (scale.at(found.value), y + 9.0), &class);
        let mut end = scale.at(found.value);
        if let Some(bounds) = found.interval {
            drawing.whisker_x(y, scale.at(bounds.low), scale.at(bounds.high));
            end = end.max(scale.at(bounds.high));
        }
        drawing.text((end + 6.0, y + 4.0), Anchor::Start, "", &number(found.value));
        said.push(format!("{name}: {} {unit}", number(found.value)));
    }
    let description = format!("Bars, one for each way of sharing. {}.", said.join("; "));
    let about = About { title, description: &description, caption, whole: false };
    page.figure(&about, drawing, Some(&numbers));
}

/// Members' numbers and rates.
type Members = Vec<(u32, Finding<Estimated>)>;

/// A bar for each member of a group, beside each other for each way of sharing.
fn members(page: &mut Page<'_>, mix: &Mix<'_>, place: usize, workload: &str) {
    let mut lanes: Vec<(&CellReport, Members)> = Vec::new();
    for cell in &mix.cells {
        let Some(group) = cell.groups.get(place).filter(|group| group.members.len() > 1) else { continue };
        let trials: Vec<_> = page.usable(cell).collect();
        let of = |member: &u32| {
            let rates: Vec<&Finding<Estimated>> = trials
                .iter()
                .filter_map(|trial| trial.members.iter().find(|known| known.member == *member))
                .map(|known| &known.throughput_samples_per_s)
                .collect();
            (*member, over_repeats(&rates))
        };
        lanes.push((cell, group.members.iter().map(of).collect()));
    }
    let bars: usize = lanes.iter().map(|(_, members)| members.len()).sum();
    if bars == 0 {
        return;
    }
    let (top, gap) = (6.0, 12.0);
    let thick = if bars > 40 { 5.0 } else { 9.0 };
    let bottom = top + bars as f64 * thick + gap * lanes.len() as f64;
    let mut drawing = Drawing::new(WIDTH, bottom + 36.0);
    let scale = Scale::from_zero(highest(lanes.iter().flat_map(|(_, m)| m).map(|(_, found)| found)), LEFT, RIGHT);
    drawing.axis_x(&scale, top, bottom, "samples/s of one member");
    let title = format!("Throughput of {workload}, member by member");
    let mut numbers = Table::new(&title, &["sharing", "member", "samples/s"], &[0]);
    let mut y = top + gap / 2.0;
    for (cell, members) in &lanes {
        let class = format!("f{} b", page.mode(&cell.sharing) % COLOURS);
        let name = in_words(&cell.sharing);
        let middle = y + members.len() as f64 * thick / 2.0;
        drawing.text((LEFT - 8.0, middle + 4.0), Anchor::End, "", &short(&name));
        for (member, found) in members {
            numbers.push(vec![super::escape(&name), member.to_string(), estimate(found, 1.0)]);
            if let Some(found) = found.value() {
                drawing.rect((LEFT, y), (scale.at(found.value), y + thick - 1.0), &class);
                if let Some(bounds) = found.interval {
                    let at = y + (thick - 1.0) / 2.0;
                    drawing.line((scale.at(bounds.low), at), (scale.at(bounds.high), at), "wh");
                }
            }
            y += thick;
        }
        y += gap;
    }
    let about = About {
        title: &title,
        description: "Bars, one for each member, in blocks for each way of sharing. Unequal bars are unfair shares.",
        caption: "One bar for each member. Line: 95 % interval, between cohorts if there are repeats.",
        whole: false,
    };
    page.figure(&about, drawing, Some(&numbers));
}

/// What a plot against something has along x.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Along {
    Batch,
    Workers,
}

impl Along {
    fn name(self) -> &'static str {
        match self {
            Self::Batch => "batch size",
            Self::Workers => "workers",
        }
    }

    fn of(self, cell: &CellReport, group: &CellGroup) -> f64 {
        match self {
            Self::Batch => f64::from(group.workload.batch_size),
            Self::Workers => f64::from(cell.members),
        }
    }
}

/// Cells of like work that differ along one thing.
struct Line<'a> {
    name: String,
    mode: usize,
    points: Vec<(f64, &'a CellGroup)>,
}

/// p99 and throughput against batch size and against the number of workers.
pub(super) fn sweeps(page: &mut Page<'_>) {
    page.section("sweeps", "Batch size and workers");
    let begin = page.figures;
    page.text.push_str("<div class=\"plots\">\n");
    for along in [Along::Batch, Along::Workers] {
        for (work, lines) in lines(page, along) {
            let values =
                |pick: fn(&CellGroup) -> &Finding<Estimated>, title: String, unit: &str, page: &mut Page<'_>| {
                    sweep(page, along, &title, unit, &lines, pick);
                };
            let by = along.name();
            values(|group| &group.latency_ms.nearest_rank.p99, format!("p99 of {work} against {by}"), "p99, ms", page);
            values(
                |group| &group.throughput_samples_per_s,
                format!("Throughput of {work} against {by}"),
                "samples/s, all members together",
                page,
            );
        }
    }
    page.text.push_str("</div>\n");
    if page.figures == begin {
        page.paragraph("", "The suite has one batch size and one number of workers for each kind of work.");
    }
    page.end_section();
}

/// The kinds of work that were measured with several values, with a line for each way of sharing.
fn lines<'a>(page: &Page<'a>, along: Along) -> Vec<(String, Vec<Line<'a>>)> {
    let mut works: Vec<(String, Vec<Line<'a>>)> = Vec::new();
    for cell in page.report.cells.iter().filter(|cell| cell.groups.len() == 1) {
        let group = &cell.groups[0];
        let batch = format!(" b{}", group.workload.batch_size);
        let work = match along {
            Along::Batch => group.workload.name.replacen(&batch, "", 1),
            Along::Workers => group.workload.name.clone(),
        };
        let name = match along {
            Along::Batch => format!("{}, {}", in_words(&cell.sharing), workers(cell.members)),
            Along::Workers => in_words(&cell.sharing),
        };
        let place = works.iter().position(|(known, _)| *known == work).unwrap_or_else(|| {
            works.push((work, Vec::new()));
            works.len() - 1
        });
        let lines = &mut works[place].1;
        let point = (along.of(cell, group), group);
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { name, mode: page.mode(&cell.sharing), points: vec![point] }),
        }
    }
    for (_, lines) in &mut works {
        lines.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    }
    let several = |lines: &[Line<'_>]| {
        let first = lines.first().and_then(|line| line.points.first()).map(|point| point.0);
        lines.iter().flat_map(|line| &line.points).any(|point| Some(point.0) != first)
    };
    works.retain(|(_, lines)| several(lines));
    works
}

fn workers(count: u32) -> String {
    if count == 1 { "1 worker".to_owned() } else { format!("{count} workers") }
}

fn sweep(
    page: &mut Page<'_>,
    along: Along,
    title: &str,
    unit: &str,
    lines: &[Line<'_>],
    pick: fn(&CellGroup) -> &Finding<Estimated>,
) {
    let points = || lines.iter().flat_map(|line| &line.points);
    let numbers = || points().filter_map(|point| pick(point.1).number());
    let (Some(low), Some(high)) = (numbers().reduce(f64::min), numbers().reduce(f64::max)) else { return };
    let keys = lines.len().div_ceil(2) as f64 * 16.0;
    let (left, right, top, bottom) = (48.0, 466.0, 22.0, 190.0);
    let mut drawing = Drawing::new(WIDTH, bottom + 40.0 + keys);
    let at = points().map(|point| point.0);
    let (first, last) = at.fold((f64::INFINITY, 0.0_f64), |(a, b), x| (a.min(x), b.max(x)));
    let x = match along {
        Along::Batch => Scale::logarithmic(first, last, left, right),
        Along::Workers => Scale::from_zero(last, left, right),
    };
    let top_value = highest(points().map(|point| pick(point.1))).max(high);
    let y = Scale::fitting(low, top_value, bottom, top);
    drawing.axis_y(&y, left, right, unit);
    let mut ticks: Vec<f64> = points().map(|point| point.0).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    for tick in &ticks {
        drawing.line((x.at(*tick), top), (x.at(*tick), bottom), "gr");
        drawing.text((x.at(*tick), bottom + 14.0), Anchor::Middle, "", &label(*tick));
    }
    drawing.text((f64::midpoint(left, right), bottom + 30.0), Anchor::Middle, "ax", along.name());
    let mut heads = vec![along.name().to_owned()];
    heads.extend(lines.iter().map(|line| line.name.clone()));
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let mut table = Table::new(title, &heads, &[0]);
    for tick in &ticks {
        let mut row = vec![label(*tick)];
        for line in lines {
            let point = line.points.iter().find(|point| (point.0 - tick).abs() < f64::EPSILON);
            row.push(
                point.map_or_else(|| super::figure::missing("not measured"), |point| estimate(pick(point.1), 1.0)),
            );
        }
        table.push(row);
    }
    for (place, line) in lines.iter().enumerate() {
        let known: Vec<(f64, &Estimated)> =
            line.points.iter().filter_map(|point| Some((x.at(point.0), pick(point.1).value()?))).collect();
        let path: Vec<(f64, f64)> = known.iter().map(|(at, found)| (*at, y.at(found.value))).collect();
        drawing.polyline(&path, &format!("l s{}", line.mode % COLOURS));
        for (at, found) in &known {
            if let Some(bounds) = found.interval {
                drawing.whisker_y(*at, y.at(bounds.low), y.at(bounds.high));
            }
            drawing.mark((*at, y.at(found.value)), line.mode);
        }
        let key = (left + (place % 2) as f64 * 215.0, bottom + 50.0 + (place / 2) as f64 * 16.0);
        drawing.line((key.0 - 6.0, key.1 - 4.0), (key.0 + 22.0, key.1 - 4.0), &format!("l s{}", line.mode % COLOURS));
        drawing.mark((key.0 + 8.0, key.1 - 4.0), line.mode);
        drawing.text((key.0 + 28.0, key.1), Anchor::Start, "", &line.name);
    }
    let about = About {
        title,
        description: "Lines with a mark for each measured value; the table below has the numbers.",
        caption: "Whisker: 95 % interval, between cohorts if there are repeats. Only cohorts whose members do the same work.",
        whole: false,
    };
    page.figure(&about, drawing, Some(&table));
}

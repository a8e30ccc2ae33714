//! How long batches take: a box for each way of sharing, and the whole distribution.

use super::figure::{About, Table};
use super::svg::{Anchor, COLOURS, Drawing, Scale};
use super::{Mix, Page, in_words};
use crate::report::cell::{CellGroup, CellReport};
use crate::report::series::SHARES;
use crate::report::text::number;

const WIDTH: f64 = 480.0;
const LEFT: f64 = 128.0;
const RIGHT: f64 = 466.0;

/// One way of sharing's latencies of one group.
struct Shape<'a> {
    cell: &'a CellReport,
    group: &'a CellGroup,
    mode: usize,
    /// Batches at [`SHARES`]: the mean over the repeats, but the least and the most of all; empty where none is kept.
    ms: Vec<f64>,
    repeats: usize,
}

/// A box plot and a distribution for each kind of work of the mix.
pub(super) fn plots(page: &mut Page<'_>, mix: &Mix<'_>) {
    for (place, workload) in workloads(mix) {
        let shapes: Vec<Shape<'_>> = mix.cells.iter().filter_map(|cell| shape(page, cell, place)).collect();
        if shapes.is_empty() {
            continue;
        }
        boxes(page, &workload, &shapes);
        distribution(page, &workload, &shapes);
    }
}

/// The kinds of work of a mix, by their place among a cell's groups.
pub(super) fn workloads(mix: &Mix<'_>) -> Vec<(usize, String)> {
    let first = mix.cells.iter().find(|cell| !cell.groups.is_empty());
    let groups = first.map_or(&[][..], |cell| &cell.groups);
    groups.iter().enumerate().map(|(place, group)| (place, group.workload.name.clone())).collect()
}

fn shape<'a>(page: &Page<'_>, cell: &'a CellReport, place: usize) -> Option<Shape<'a>> {
    let group = cell.groups.get(place)?;
    let kept: Vec<Vec<f64>> = page
        .usable(cell)
        .filter_map(|trial| Some(trial.series.as_ref()?.latencies.get(place)?.ms.clone()))
        .filter(|ms| ms.len() == SHARES.len())
        .collect();
    let over = |at: usize| {
        let values = kept.iter().map(|ms| ms[at]);
        match at {
            0 => values.fold(f64::INFINITY, f64::min),
            _ if at == SHARES.len() - 1 => values.fold(0.0, f64::max),
            _ => values.sum::<f64>() / kept.len() as f64,
        }
    };
    let ms = if kept.is_empty() { Vec::new() } else { (0..SHARES.len()).map(over).collect() };
    Some(Shape { cell, group, mode: page.mode(&cell.sharing), ms, repeats: kept.len() })
}

/// Shortest and longest batch.
fn range(shape: &Shape<'_>) -> Option<(f64, f64)> {
    Some((shape.group.latency_ms.min.number()?, shape.group.latency_ms.max.number()?))
}

fn at_share(shape: &Shape<'_>, share: f64) -> Option<f64> {
    let place = SHARES.iter().position(|known| (known - share).abs() < 1e-9)?;
    shape.ms.get(place).copied()
}

fn extremes(shapes: &[Shape<'_>]) -> Option<(f64, f64)> {
    shapes.iter().filter_map(range).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
}

fn boxes(page: &mut Page<'_>, workload: &str, shapes: &[Shape<'_>]) {
    let Some((low, high)) = extremes(shapes) else { return };
    let (top, row) = (24.0, 30.0);
    let bottom = top + row * shapes.len() as f64;
    let mut drawing = Drawing::new(WIDTH, bottom + 36.0);
    let bound = bound(page, workload);
    let ends = |value: f64| (low.min(value), high.max(value));
    let (low, high) = bound.as_ref().map_or((low, high), |(value, _)| ends(*value));
    let scale = Scale::fitting(low, high, LEFT, RIGHT);
    drawing.axis_x(&scale, top, bottom, "latency of a batch, ms");
    let mut numbers = Table::new(
        &format!("Latency of a batch of {workload}, ms"),
        &["sharing", "shortest", "p25", "p50", "p75", "p99", "longest"],
        &[0],
    );
    let mut said = Vec::new();
    for (place, shape) in shapes.iter().enumerate() {
        let y = top + row * (place as f64 + 0.5);
        let name = in_words(&shape.cell.sharing);
        drawing.text((LEFT - 8.0, y + 4.0), Anchor::End, "", &short(&name));
        let latency = &shape.group.latency_ms;
        if let Some((low, high)) = range(shape) {
            drawing.whisker_x(y, scale.at(low), scale.at(high));
        }
        if let (Some(low), Some(high)) = (at_share(shape, 0.25), at_share(shape, 0.75)) {
            let class = format!("f{} b", shape.mode % COLOURS);
            drawing.rect((scale.at(low), y - 9.0), (scale.at(high), y + 9.0), &class);
        }
        if let Some(median) = latency.nearest_rank.p50.number() {
            drawing.line((scale.at(median), y - 9.0), (scale.at(median), y + 9.0), "med");
        }
        if let Some(p99) = latency.nearest_rank.p99.number() {
            drawing.mark((scale.at(p99), y), shape.mode);
            said.push(format!("{name}: p99 {} ms", number(p99)));
        }
        let shown = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), number);
        numbers.push(vec![
            super::escape(&name),
            shown(latency.min.number()),
            shown(at_share(shape, 0.25)),
            shown(latency.nearest_rank.p50.number()),
            shown(at_share(shape, 0.75)),
            shown(latency.nearest_rank.p99.number()),
            shown(latency.max.number()),
        ]);
    }
    if let Some((value, text)) = bound {
        let x = scale.at(value);
        drawing.line((x, top - 4.0), (x, bottom), "bound");
        let anchor = if x > f64::midpoint(LEFT, RIGHT) { Anchor::End } else { Anchor::Start };
        drawing.text((x, top - 8.0), anchor, "", &text);
    }
    let caption = if shapes.iter().all(|shape| shape.ms.is_empty()) {
        "Line: shortest to longest batch; bar: median; mark: p99. This report keeps no more of the distribution."
    } else {
        "Line: shortest to longest batch of all repeats; box: middle half; bar: median; mark: p99 (of the members together, mean over repeats)."
    };
    let about = About {
        title: &format!("Latency of {workload}"),
        description: &format!("Box plot, one row for each way of sharing. {}.", said.join("; ")),
        caption,
        whole: false,
    };
    page.figure(&about, drawing, Some(&numbers));
}

/// The objective's bound, where it is one on this latency.
fn bound(page: &Page<'_>, workload: &str) -> Option<(f64, String)> {
    let objective = page.report.objective.as_ref().filter(|objective| objective.unit == "ms")?;
    let judged = objective.judgements.iter().any(|judgement| judgement.workload == workload);
    let bound = objective.bound.filter(|_| judged)?;
    Some((bound, format!("{} at most {bound}", objective.metric)))
}

/// A label that fits beside a plot.
pub(super) fn short(name: &str) -> String {
    let name = name.replace("MPS, each capped to ", "MPS capped ");
    if name.chars().count() <= 19 {
        return name;
    }
    format!("{}…", name.chars().take(18).collect::<String>())
}

fn distribution(page: &mut Page<'_>, workload: &str, shapes: &[Shape<'_>]) {
    let shapes: Vec<&Shape<'_>> = shapes.iter().filter(|shape| !shape.ms.is_empty()).collect();
    let ends = shapes.iter().map(|shape| (shape.ms[0], shape.ms[SHARES.len() - 1]));
    let Some((low, high)) = ends.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))) else { return };
    let (left, top, bottom) = (44.0, 22.0, 190.0);
    let mut drawing = Drawing::new(WIDTH, bottom + 36.0);
    let x = if high / low.max(1e-9) > 10.0 {
        Scale::logarithmic(low, high, left, RIGHT)
    } else {
        Scale::between(low - (high - low) * 0.03, high + (high - low) * 0.03, left, RIGHT)
    };
    let y = Scale::between(0.0, 1.0, bottom, top);
    drawing.axis_x(&x, top, bottom, "latency of a batch, ms");
    drawing.axis_y(&y, left, RIGHT, "share of batches that take no longer");
    let heads =
        ["share of batches", "0 (shortest)", "0.05", "0.25", "0.5", "0.75", "0.95", "0.99", "0.999", "1 (longest)"];
    let mut numbers = Table::new(&format!("Distribution of the latency of {workload}, ms"), &heads, &[0]);
    for shape in &shapes {
        let mut points = Vec::with_capacity(2 * SHARES.len());
        for (share, ms) in SHARES.iter().zip(&shape.ms) {
            points.push((x.at(*ms), y.at(*share)));
        }
        drawing.polyline(&points, &format!("l s{}", shape.mode % COLOURS));
        if let Some(median) = at_share(shape, 0.5) {
            drawing.mark((x.at(median), y.at(0.5)), shape.mode);
        }
        let mut row = vec![super::escape(&in_words(&shape.cell.sharing))];
        row.extend(
            [0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999, 1.0]
                .iter()
                .map(|share| at_share(shape, *share).map_or_else(|| "–".to_owned(), number)),
        );
        numbers.push(row);
    }
    let repeats = shapes.iter().map(|shape| shape.repeats).max().unwrap_or(0);
    let caption = format!(
        "Batches of all members together{}, at {} shares from the shortest to the longest; the table has some of them.",
        if repeats > 1 { ", mean over repeats at each share" } else { "" },
        SHARES.len()
    );
    let about = About {
        title: &format!("Distribution of the latency of {workload}"),
        description: "Cumulative distribution, one line for each way of sharing; further left is faster, steeper is steadier.",
        caption: &caption,
        whole: false,
    };
    page.figure(&about, drawing, Some(&numbers));
}

//! Plots as inline SVG, drawn here: scales, axes, marks. Colours come from the page's style sheet by class, so that one
//! drawing serves light, dark and print; shapes and dashes repeat what colours say.

use std::fmt::Write as _;

/// Ways of sharing that have a colour of their own; further ones begin again, and are told apart by their names.
pub(super) const COLOURS: usize = 7;

/// Text as it may stand in HTML, in attributes too. Control characters are replaced.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(c),
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// From values to places.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    log: bool,
}

impl Scale {
    /// From zero to a little beyond the largest value.
    pub(super) fn from_zero(highest: f64, from: f64, to: f64) -> Self {
        let high = if highest > 0.0 { highest * 1.04 } else { 1.0 };
        Self { low: 0.0, high, from, to, log: false }
    }

    /// From end to end.
    pub(super) fn between(low: f64, high: f64, from: f64, to: f64) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        Self { low, high, from, to, log: false }
    }

    /// By factors, a little beyond both ends; equal steps where a value is not positive.
    pub(super) fn logarithmic(low: f64, high: f64, from: f64, to: f64) -> Self {
        if low <= 0.0 {
            return Self::from_zero(high, from, to);
        }
        Self { low: low / 1.08, high: high.max(low) * 1.08, from, to, log: true }
    }

    /// Logarithmic where the values span more than a factor of ten, else from zero.
    pub(super) fn fitting(low: f64, high: f64, from: f64, to: f64) -> Self {
        if low > 0.0 && high / low > 10.0 {
            Self::logarithmic(low, high, from, to)
        } else {
            Self::from_zero(high, from, to)
        }
    }

    pub(super) fn is_logarithmic(&self) -> bool {
        self.log
    }

    pub(super) fn at(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share.clamp(-0.02, 1.02) * (self.to - self.from)
    }

    /// Round values to label.
    pub(super) fn ticks(&self) -> Vec<f64> {
        if self.log {
            let decade = |n: i32| 10_f64.powi(n);
            let all = |steps: &[f64]| -> Vec<f64> {
                (-6..12)
                    .flat_map(|n| steps.iter().map(move |step| step * decade(n)))
                    .filter(|tick| (self.low..=self.high).contains(tick))
                    .collect()
            };
            let (one, three) = (all(&[1.0]), all(&[1.0, 2.0, 5.0]));
            return if one.len() > 3 { one } else { three };
        }
        let rough = (self.high - self.low) / 5.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|step| step * power).find(|step| *step >= rough);
        let step = step.unwrap_or(power * 10.0);
        let first = (self.low / step).ceil();
        (0..12_u32).map(|n| (first + f64::from(n)) * step).filter(|tick| *tick <= self.high * (1.0 + 1e-9)).collect()
    }
}

/// A tick's label: as many digits as it needs, thousands as `k`.
pub(super) fn label(value: f64) -> String {
    let size = value.abs();
    if size >= 1e4 {
        return format!("{}k", label(value / 1e3));
    }
    let text = format!("{value:.3}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Where a text is anchored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A drawing that grows.
#[derive(Debug)]
pub(super) struct Drawing {
    width: f64,
    height: f64,
    body: String,
}

/// A number with one decimal at most: a tenth of a pixel.
fn px(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), ToOwned::to_owned)
}

impl Drawing {
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new() }
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let _ = write!(
            self.body,
            r#"<line class="{class}" x1="{}" y1="{}" x2="{}" y2="{}"/>"#,
            px(from.0),
            px(from.1),
            px(to.0),
            px(to.1)
        );
    }

    /// A rectangle between two corners.
    pub(super) fn rect(&mut self, corner: (f64, f64), opposite: (f64, f64), class: &str) {
        let (x, y) = (corner.0.min(opposite.0), corner.1.min(opposite.1));
        let _ = write!(
            self.body,
            r#"<rect class="{class}" x="{}" y="{}" width="{}" height="{}"/>"#,
            px(x),
            px(y),
            px((corner.0 - opposite.0).abs()),
            px((corner.1 - opposite.1).abs())
        );
    }

    pub(super) fn text(&mut self, at: (f64, f64), anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => r#" text-anchor="middle""#,
            Anchor::End => r#" text-anchor="end""#,
        };
        let class = if class.is_empty() { String::new() } else { format!(r#" class="{class}""#) };
        let (x, y) = (px(at.0), px(at.1));
        let _ = write!(self.body, r#"<text{class} x="{x}" y="{y}"{anchor}>{}</text>"#, escape(text));
    }

    fn points(points: &[(f64, f64)]) -> String {
        points.iter().map(|(x, y)| format!("{},{}", px(*x), px(*y))).collect::<Vec<_>>().join(" ")
    }

    pub(super) fn polyline(&mut self, points: &[(f64, f64)], class: &str) {
        let _ = write!(self.body, r#"<polyline class="{class}" points="{}"/>"#, Self::points(points));
    }

    pub(super) fn polygon(&mut self, points: &[(f64, f64)], class: &str) {
        let _ = write!(self.body, r#"<polygon class="{class}" points="{}"/>"#, Self::points(points));
    }

    /// The mark of a way of sharing: its colour and a shape of its own.
    pub(super) fn mark(&mut self, at: (f64, f64), series: usize) {
        let (x, y) = at;
        let class = format!("f{}", series % COLOURS);
        let r = 4.0;
        match series % COLOURS {
            0 => {
                let _ = write!(self.body, r#"<circle class="{class}" cx="{}" cy="{}" r="{r}"/>"#, px(x), px(y));
            }
            1 => self.rect((x - r, y - r), (x + r, y + r), &class),
            2 => self.polygon(&[(x, y - r - 1.0), (x + r + 1.0, y + r), (x - r - 1.0, y + r)], &class),
            3 => self.polygon(&[(x, y - r - 1.0), (x + r + 1.0, y), (x, y + r + 1.0), (x - r - 1.0, y)], &class),
            4 => self.polygon(&[(x, y + r + 1.0), (x + r + 1.0, y - r), (x - r - 1.0, y - r)], &class),
            5 => self.rect((x - r - 1.0, y - 2.0), (x + r + 1.0, y + 2.0), &class),
            _ => self.rect((x - 2.0, y - r - 1.0), (x + 2.0, y + r + 1.0), &class),
        }
    }

    /// A whisker along x with end caps.
    pub(super) fn whisker_x(&mut self, y: f64, low: f64, high: f64) {
        self.line((low, y), (high, y), "wh");
        self.line((low, y - 3.0), (low, y + 3.0), "wh");
        self.line((high, y - 3.0), (high, y + 3.0), "wh");
    }

    /// A whisker along y with end caps.
    pub(super) fn whisker_y(&mut self, x: f64, low: f64, high: f64) {
        self.line((x, low), (x, high), "wh");
        self.line((x - 3.0, low), (x + 3.0, low), "wh");
        self.line((x - 3.0, high), (x + 3.0, high), "wh");
    }

    /// Lines across and labels below for the x axis, between two heights.
    pub(super) fn axis_x(&mut self, scale: &Scale, top: f64, bottom: f64, name: &str) {
        let mut last = f64::NEG_INFINITY;
        for tick in scale.ticks() {
            let x = scale.at(tick);
            self.line((x, top), (x, bottom), "gr");
            if x - last >= 30.0 {
                self.text((x, bottom + 14.0), Anchor::Middle, "", &label(tick));
                last = x;
            }
        }
        let name = if scale.is_logarithmic() { format!("{name} (logarithmic)") } else { name.to_owned() };
        self.text((f64::midpoint(scale.from, scale.to), bottom + 30.0), Anchor::Middle, "ax", &name);
    }

    /// Lines across and labels at the left for the y axis, between two sides; the name stands above.
    pub(super) fn axis_y(&mut self, scale: &Scale, left: f64, right: f64, name: &str) {
        for tick in scale.ticks() {
            let y = scale.at(tick);
            self.line((left, y), (right, y), "gr");
            self.text((left - 5.0, y + 4.0), Anchor::End, "", &label(tick));
        }
        let name = if scale.is_logarithmic() { format!("{name} (logarithmic)") } else { name.to_owned() };
        self.text((4.0, scale.to.min(scale.from) - 8.0), Anchor::Start, "ax", &name);
    }

    /// The drawing with its name and what it shows, for those who can't see it.
    pub(super) fn finish(self, id: &str, title: &str, description: &str) -> String {
        format!(
            concat!(
                r#"<svg role="img" aria-labelledby="{id}-t {id}-d" viewBox="0 0 {w} {h}">"#,
                r#"<title id="{id}-t">{t}</title><desc id="{id}-d">{d}</desc>{body}</svg>"#
            ),
            id = id,
            w = px(self.width),
            h = px(self.height),
            t = escape(title),
            d = escape(description),
            body = self.body
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_outside_becomes_markup() {
        assert_eq!(escape("a<b>&\"c\"\u{1b}[2J"), "a&lt;b&gt;&amp;&quot;c&quot;\u{fffd}[2J");
    }

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(Scale::between(0.0, 100.0, 0.0, 1.0).ticks(), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(Scale::between(-3.0, 8.0, 0.0, 1.0).ticks(), [-2.5, 0.0, 2.5, 5.0, 7.5]);
        assert_eq!(Scale::logarithmic(4.0, 60.0, 0.0, 1.0).ticks(), [5.0, 10.0, 20.0, 50.0]);
        for high in [0.0, 1e-9, 3.0, 7e9] {
            let scale = Scale::from_zero(high, 0.0, 1.0);
            assert!(scale.ticks().iter().all(|tick| (0.0..=1.0 + 1e-9).contains(&scale.at(*tick))), "{high}");
            assert!(scale.ticks().len() >= 3, "{high}");
        }
    }

    #[test]
    fn labels_are_short() {
        for (value, text) in [(0.0, "0"), (2.5, "2.5"), (1500.0, "1500"), (20_000.0, "20k"), (0.05, "0.05")] {
            assert_eq!(label(value), text);
        }
    }
}

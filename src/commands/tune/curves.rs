//! The share of warm calls against the memory of a pool, as a chart: a panel for each language, a point for each size.

use std::fmt::Write as _;

const WIDTH: i32 = 900;
const MARGIN: i32 = 24;

/// The title and a line below it.
const HEAD_HEIGHT: i32 = 76;

/// A panel with its title and the labels of its axis.
const PANEL_HEIGHT: i32 = 244;

/// The most sizes that have a point each.
const MOST_POINTS: usize = 100;

/// The part of a panel in which the curve is: left, right, top, bottom.
const PLOT: (i32, i32, i32, i32) = (MARGIN + 56, WIDTH - MARGIN - 36, 56, 176);

const TEXT_COLOUR: &str = "#1f2328";
const MUTED_COLOUR: &str = "#59636e";
const GRID_COLOUR: &str = "#d8dee4";
const CURVE_COLOUR: &str = "#0b4fa8";
const NOW_COLOUR: &str = "#d24a10";

/// The curve of a language.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Curve {
    /// Its name.
    pub(super) language: String,
    /// MiB for each sandbox.
    pub(super) each: f64,
    /// The share of warm calls by size, from 0 sandboxes on.
    pub(super) shares: Vec<f64>,
    /// The size as it is, if it is always the same.
    pub(super) now: Option<usize>,
    /// The size as it should be.
    pub(super) chosen: usize,
}

/// The curves as SVG. `below` is the line below the title.
pub(super) fn svg(curves: &[Curve], below: &str) -> String {
    let panels = i32::try_from(curves.len()).unwrap_or(i32::MAX / PANEL_HEIGHT - 1);
    let height = HEAD_HEIGHT + panels * PANEL_HEIGHT + MARGIN;
    let mut svg = Svg(format!(
        "<svg width=\"{WIDTH}\" height=\"{height}\" xmlns=\"http://www.w3.org/2000/svg\" font-family=\"sans-serif\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\" stroke=\"{GRID_COLOUR}\"/>\n"
    ));
    let title = "Warm calls and memory, by the size of the pool";
    svg.text(title, (MARGIN, 28), (21, TEXT_COLOUR), Anchor::Start);
    svg.text(below, (MARGIN, 54), (15, MUTED_COLOUR), Anchor::Start);
    for (curve, panel) in curves.iter().zip(0..) {
        svg.panel(curve, HEAD_HEIGHT + panel * PANEL_HEIGHT);
    }
    svg.0 + "</svg>\n"
}

/// The part of a text that is at its place.
#[derive(Clone, Copy)]
enum Anchor {
    Start,
    Middle,
    End,
}

/// The text of a drawing so far.
struct Svg(String);

impl Svg {
    fn panel(&mut self, curve: &Curve, top: i32) {
        let (left, right, above, below) = PLOT;
        // Both marks are on the curve, which goes on as it ends.
        let sizes = curve.shares.len().saturating_sub(1).max(curve.chosen);
        let sizes = sizes.max(curve.now.unwrap_or(0)).max(1);
        let x = |size: usize| {
            let share = size as f64 / sizes as f64;
            left + (share * f64::from(right - left)).round() as i32
        };
        let y = |share: f64| {
            top + below - (share.clamp(0.0, 1.0) * f64::from(below - above)).round() as i32
        };
        self.text(&curve.language, (MARGIN, top + 14), (17, TEXT_COLOUR), Anchor::Start);
        for percent in [0, 50, 90, 100] {
            let at = y(f64::from(percent) / 100.0);
            self.line(&[(left, at), (right, at)], GRID_COLOUR);
            // 90 and 100 are too close for two labels.
            if percent != 90 {
                let label = format!("{percent} %");
                self.text(&label, (left - 8, at), (14, MUTED_COLOUR), Anchor::End);
            }
        }
        // Not more labels than have room.
        for size in (0..=sizes).step_by(sizes.div_ceil(10)) {
            let label = format!("{size}: {:.0} MiB", size as f64 * curve.each);
            self.text(&label, (x(size), top + below + 16), (13, MUTED_COLOUR), Anchor::Middle);
        }
        let axis = "size of the pool, and its memory";
        self.text(axis, (right, top + below + 36), (13, MUTED_COLOUR), Anchor::End);
        self.text("warm calls", (left, top + above - 16), (13, MUTED_COLOUR), Anchor::Start);
        let share = |size: usize| curve.shares.get(size).or(curve.shares.last()).copied();
        let point = |size: usize| (x(size), y(share(size).unwrap_or_default()));
        let points: Vec<_> = (0..=sizes).map(point).collect();
        self.line(&points, CURVE_COLOUR);
        // More of them would run together.
        if sizes <= MOST_POINTS {
            for point in points {
                self.circle(point, 3, "fill", CURVE_COLOUR);
            }
        }
        if let Some(now) = curve.now {
            self.circle(point(now), 7, "fill=\"none\" stroke-width=\"2\" stroke", NOW_COLOUR);
        }
        self.circle(point(curve.chosen), 6, "fill", CURVE_COLOUR);
    }

    fn line(&mut self, points: &[(i32, i32)], colour: &str) {
        let points: String = points.iter().map(|(x, y)| format!("{x},{y} ")).collect();
        self.push(format_args!(
            "<polyline fill=\"none\" stroke=\"{colour}\" points=\"{points}\"/>"
        ));
    }

    /// A circle that is filled or drawn with a colour, as `kind` says.
    fn circle(&mut self, (x, y): (i32, i32), radius: i32, kind: &str, colour: &str) {
        self.push(format_args!(
            "<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" {kind}=\"{colour}\"/>"
        ));
    }

    fn text(
        &mut self,
        text: &str,
        (x, y): (i32, i32),
        (size, colour): (i32, &str),
        anchor: Anchor,
    ) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        self.push(format_args!(
            "<text x=\"{x}\" y=\"{y}\" dy=\"0.35em\" text-anchor=\"{anchor}\" font-size=\"{size}\" \
             fill=\"{colour}\">{text}</text>"
        ));
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string can't fail.
        let _ = writeln!(self.0, "{element}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_has_its_name_its_sizes_and_both_marks() {
        let curve = |language: &str, shares: &[f64], now, chosen| Curve {
            language: language.to_owned(),
            each: 50.0,
            shares: shares.to_vec(),
            now,
            chosen,
        };
        let curves = [
            curve("<py>", &[0.0, 0.8, 0.9, 0.99, 1.0], Some(9), 3),
            curve("none", &[0.0], None, 0),
        ];
        let drawn = svg(&curves, "filled: advice & ring: now");
        let document = roxmltree::Document::parse(&drawn).unwrap();
        let texts: Vec<_> =
            document.descendants().filter_map(|node| node.text()).map(str::trim).collect();
        for text in ["<py>", "none", "4: 200 MiB", "0: 0 MiB", "filled: advice & ring: now"] {
            assert!(texts.contains(&text), "{texts:?}");
        }
        // Points, and the marks.
        let circles = |svg: &str| {
            let document = roxmltree::Document::parse(svg).unwrap();
            let circles = document.descendants().filter(|node| node.has_tag_name("circle"));
            let place = |node: roxmltree::Node<'_, '_>| {
                ["cx", "cy"].map(|name| node.attribute(name).unwrap().to_owned())
            };
            circles.map(place).collect::<Vec<_>>()
        };
        assert_eq!(circles(&drawn).len(), 10 + 2 + 2 + 1);
        // Of a large pool, only the marks, and both are on the line.
        let large: Vec<_> = (0..=130).map(|size| (f64::from(size) / 100.0).min(1.0)).collect();
        let drawn = svg(&[curve("go", &large, Some(140), 102)], "");
        let document = roxmltree::Document::parse(&drawn).unwrap();
        let lines = document.descendants().filter_map(|node| node.attribute("points"));
        let line = lines.max_by_key(|points| points.len()).unwrap();
        let marks = circles(&drawn);
        assert_eq!(marks.len(), 2);
        for [x, y] in marks {
            assert!(line.contains(&format!("{x},{y} ")), "{x},{y} is not on {line}");
        }
    }
}

//! Results as a chart: a bar for each scenario up to its median, a whisker from there to its p95.
//!
//! The axis is logarithmic, because a cold start and a hot one are too far apart for any other. The
//! background is drawn: pages that show the chart may be light or dark.

use std::collections::BTreeSet;
use std::io;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::results::{Results, Row};
use crate::scenario::Scenario;
use crate::statistics::ms;
use crate::table::digits;

const WIDTH: i32 = 900;
const MARGIN: i32 = 24;

/// Title, a line about the machine, and the gap below; each more line makes it taller.
const HEAD_HEIGHT: i32 = 74;
const HEAD_LINE_HEIGHT: i32 = 18;

/// Characters that fit into a line about the machine, even in a font that is wider than most.
const MAX_MACHINE_LINE: usize = 105;

/// Left and right end of the axis; the names are left of it, the figures of the longest bar right.
const AXIS: (i32, i32) = (MARGIN + 195, WIDTH - MARGIN - 125);

/// Height of a program's name, of a bar, and of a bar with the gap below it.
const PROGRAM_HEIGHT: i32 = 30;
const BAR_HEIGHT: i32 = 15;
const BAR_PITCH: i32 = 20;

/// Height of the axis' labels.
const FOOT_HEIGHT: i32 = 64;

const TEXT_COLOUR: RGBColor = RGBColor(0x1f, 0x23, 0x28);
const MUTED_COLOUR: RGBColor = RGBColor(0x59, 0x63, 0x6e);
const GRID_COLOUR: RGBColor = RGBColor(0xd8, 0xde, 0xe4);

/// A chart that can't be drawn.
#[derive(Debug, thiserror::Error)]
#[error("the chart can't be drawn: {0}")]
pub struct ChartError(#[from] DrawingAreaErrorKind<io::Error>);

type Drawn = Result<(), DrawingAreaErrorKind<io::Error>>;

/// The chart as SVG.
///
/// # Errors
///
/// When the library can't draw it.
pub fn svg(results: &Results) -> Result<String, ChartError> {
    let rows = i32::try_from(results.rows.len()).unwrap_or(i32::MAX);
    let programs = i32::try_from(results.programs().count()).unwrap_or(i32::MAX);
    let machine = wrap(&results.machine.parts());
    let head = HEAD_HEIGHT
        + HEAD_LINE_HEIGHT * i32::try_from(machine.len().saturating_sub(1)).unwrap_or(0);
    let bottom = head + programs * PROGRAM_HEIGHT + rows * BAR_PITCH;
    let mut svg = String::new();
    let size = (WIDTH.unsigned_abs(), (bottom + FOOT_HEIGHT).unsigned_abs());
    let canvas = Canvas {
        root: SVGBackend::with_string(&mut svg, size).into_drawing_area(),
        scale: Scale::of(&results.rows),
    };
    canvas.background(bottom)?;
    canvas.head(&machine)?;
    canvas.axis((head, bottom), &compared_with(&results.rows))?;
    let mut top = head;
    for rows in results.programs() {
        canvas.text(
            &rows[0].program,
            (MARGIN, top + PROGRAM_HEIGHT / 2),
            Font::Strong,
            HPos::Left,
        )?;
        top += PROGRAM_HEIGHT;
        for row in rows {
            canvas.row(row, top)?;
            top += BAR_PITCH;
        }
    }
    canvas.root.present()?;
    drop(canvas);
    Ok(svg)
}

/// How a text looks.
#[derive(Clone, Copy)]
enum Font {
    Title,
    Strong,
    Plain,
    Muted,
}

struct Canvas<'a> {
    root: DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
    scale: Scale,
}

impl Canvas<'_> {
    fn background(&self, bottom: i32) -> Drawn {
        self.root.fill(&WHITE)?;
        let corners = [(0, 0), (WIDTH - 1, bottom + FOOT_HEIGHT - 1)];
        self.root.draw(&Rectangle::new(corners, GRID_COLOUR.stroke_width(1)))
    }

    fn head(&self, machine: &[String]) -> Drawn {
        self.text(
            "Time of one call, as its caller sees it",
            (MARGIN, 26),
            Font::Title,
            HPos::Left,
        )?;
        for (line, top) in machine.iter().zip((52..).step_by(HEAD_LINE_HEIGHT as usize)) {
            self.text(line, (MARGIN, top), Font::Muted, HPos::Left)?;
        }
        Ok(())
    }

    fn axis(&self, (top, bottom): (i32, i32), compared_with: &str) -> Drawn {
        for tick in self.scale.ticks() {
            let x = self.scale.place(tick);
            self.line(&[(x, top), (x, bottom + 4)], GRID_COLOUR)?;
            let label =
                if tick < 1000.0 { format!("{tick} ms") } else { format!("{} s", tick / 1000.0) };
            self.text(&label, (x, bottom + 16), Font::Muted, HPos::Center)?;
        }
        let legend = format!(
            "bar: median; whisker: p95; ×: times faster than {compared_with}; logarithmic axis"
        );
        self.text(&legend, (MARGIN, bottom + 44), Font::Muted, HPos::Left)
    }

    fn row(&self, row: &Row, top: i32) -> Drawn {
        let middle = top + BAR_HEIGHT / 2;
        let name = (AXIS.0 - 10, middle);
        self.text(row.scenario.label(), name, Font::Plain, HPos::Right)?;
        let (median, slow) = (row.summary.p50, row.summary.p95);
        let [from, to] = [median, slow].map(|took| self.scale.place(ms(took)));
        let bar = [(AXIS.0, top), (from, top + BAR_HEIGHT)];
        self.root.draw(&Rectangle::new(bar, colour(row.scenario).filled()))?;
        self.line(&[(from, middle), (to, middle)], TEXT_COLOUR)?;
        self.line(&[(to, middle - 3), (to, middle + 3)], TEXT_COLOUR)?;
        let figure = format!("{} ms, {:.1}×", digits(median), row.times_faster);
        self.text(&figure, (to + 8, middle), Font::Plain, HPos::Left)
    }

    fn line(&self, points: &[(i32, i32)], colour: RGBColor) -> Drawn {
        self.root.draw(&PathElement::new(points, colour.stroke_width(1)))
    }

    fn text(&self, text: &str, place: (i32, i32), font: Font, target: HPos) -> Drawn {
        let (size, style, colour) = match font {
            Font::Title => (21, FontStyle::Bold, TEXT_COLOUR),
            Font::Strong => (17, FontStyle::Bold, TEXT_COLOUR),
            Font::Plain => (15, FontStyle::Normal, TEXT_COLOUR),
            Font::Muted => (15, FontStyle::Normal, MUTED_COLOUR),
        };
        let font = ("sans-serif", size).into_font().style(style).color(&colour);
        self.root.draw(&Text::new(text, place, font.pos(Pos::new(target, VPos::Center))))
    }
}

/// Grey for the plain API; a family for each engine, and the warmer an Isolator, the stronger.
fn colour(scenario: Scenario) -> RGBColor {
    match scenario {
        Scenario::DockerCold => RGBColor(0x8c, 0x95, 0x9f),
        Scenario::DockerNaiveWarm => RGBColor(0xb7, 0xbf, 0xc8),
        Scenario::IsolatorCold => RGBColor(0xa5, 0xc8, 0xf0),
        Scenario::IsolatorPaused => RGBColor(0x4d, 0x90, 0xe0),
        Scenario::IsolatorHot => RGBColor(0x0b, 0x4f, 0xa8),
        Scenario::EmbeddedCold => RGBColor(0xf5, 0xc9, 0xa8),
        Scenario::EmbeddedPaused => RGBColor(0xef, 0x90, 0x4f),
        Scenario::EmbeddedHot => RGBColor(0xd2, 0x4a, 0x10),
    }
}

/// The machine's description in lines that fit. The first is for the hardware alone.
fn wrap(parts: &[String]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        match lines.last_mut() {
            Some(line) if index > 1 && line.len() + part.len() < MAX_MACHINE_LINE => {
                line.push_str("; ");
                line.push_str(part);
            }
            _ => lines.push(part.clone()),
        }
    }
    lines
}

/// The scenarios that others are compared with; where an engine lacks images, that may be more than one.
fn compared_with(rows: &[Row]) -> String {
    let labels: BTreeSet<_> = rows.iter().map(|row| row.compared_with).collect();
    labels.into_iter().map(Scenario::label).collect::<Vec<_>>().join(" or ")
}

/// A logarithmic axis in milliseconds, between two of its ticks.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    /// The axis on which all rows have room, and the shortest bar is not nothing.
    fn of(rows: &[Row]) -> Self {
        let shortest = rows.iter().map(|row| ms(row.summary.p50)).fold(f64::INFINITY, f64::min);
        let longest = rows.iter().map(|row| ms(row.summary.p95)).fold(0.0, f64::max);
        let shortest = if shortest.is_finite() { shortest / 1.5 } else { 1.0 };
        let low = ticks().take_while(|tick| *tick <= shortest).last();
        let low = low.unwrap_or(FIRST_TICK);
        let high = ticks().find(|tick| *tick >= longest && *tick > low);
        Self { low, high: high.unwrap_or(longest) }
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let (low, high) = (self.low, self.high);
        ticks().skip_while(move |tick| *tick < low).take_while(move |tick| *tick <= high)
    }

    /// Where a value lies, in pixels from the left.
    fn place(&self, ms: f64) -> i32 {
        let share = (ms / self.low).ln() / (self.high / self.low).ln();
        AXIS.0 + (share.clamp(0.0, 1.0) * f64::from(AXIS.1 - AXIS.0)).round() as i32
    }
}

/// A tenth of a millisecond: nothing that is measured is faster.
const FIRST_TICK: f64 = 0.1;

/// 0.1, 0.2, 0.5, 1, 2, 5 and so on, up to days.
fn ticks() -> impl Iterator<Item = f64> {
    let of_decade = |decade: i32| [1.0, 2.0, 5.0].map(|tick| tick * 10_f64.powi(decade));
    (-1..9).flat_map(of_decade)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::example;

    /// The texts of an SVG that is well-formed.
    fn texts(svg: &str) -> Vec<String> {
        let document = roxmltree::Document::parse(svg).unwrap_or_else(|e| panic!("{e}: {svg}"));
        assert!(document.root_element().has_tag_name(("http://www.w3.org/2000/svg", "svg")));
        let elements = document.descendants().filter(|node| node.has_tag_name("text"));
        elements.filter_map(|node| Some(node.text()?.trim().to_owned())).collect()
    }

    #[test]
    fn a_chart_names_everything_it_shows() {
        let results = example();
        let texts = texts(&svg(&results).unwrap());
        for row in &results.rows {
            assert!(texts.contains(&row.program), "{texts:?}");
            assert!(texts.iter().any(|text| text == row.scenario.label()), "{texts:?}");
        }
        assert!(texts.iter().any(|text| text.contains("12.5×")), "{texts:?}");
        assert!(texts.iter().any(|text| text.contains("CPU <of & for> tests")), "{texts:?}");
        assert!(texts.iter().any(|text| text.contains("Isolator 0.")), "{texts:?}");
        assert!(texts.iter().any(|text| text.contains("embedded engine")), "{texts:?}");
        assert!(texts.iter().any(|text| text.contains("than docker API, cold")), "{texts:?}");
        assert!(!texts.iter().any(|text| text.contains("requests")), "{texts:?}");
    }

    #[test]
    fn nothing_lies_outside_the_picture() {
        let svg = svg(&example()).unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let number = |node: roxmltree::Node<'_, '_>, name: &str| -> Option<f64> {
            node.attribute(name)?.parse().ok()
        };
        let root = document.root_element();
        let (width, height) = (number(root, "width").unwrap(), number(root, "height").unwrap());
        for node in document.descendants().filter(|node| node.is_element()) {
            let [x, y] = ["x", "y"].map(|name| number(node, name).unwrap_or_default());
            assert!((0.0..width).contains(&x) && (0.0..height).contains(&y), "{node:?}");
            let right = x + number(node, "width").unwrap_or_default();
            assert!(right <= width, "{node:?}");
        }
    }

    #[test]
    fn the_machine_s_description_is_in_lines_that_fit() {
        let parts = |lengths: &[usize]| lengths.iter().map(|n| "x".repeat(*n)).collect::<Vec<_>>();
        let lengths =
            wrap(&parts(&[20, 60, 30, 40, 10])).iter().map(String::len).collect::<Vec<_>>();
        assert_eq!(lengths, [20, 92, 52]);
        assert_eq!(wrap(&[]), [""; 0]);
    }

    #[test]
    fn ten_times_the_time_is_always_the_same_length() {
        let scale = Scale::of(&example().rows);
        assert_eq!((scale.low, scale.high), (10.0, 2000.0));
        let length = |from: f64| scale.place(from * 10.0) - scale.place(from);
        assert!((length(10.0) - length(100.0)).abs() <= 1);
        assert_eq!((scale.place(10.0), scale.place(2000.0)), AXIS);
    }
}

//! Charts of marks and lines, drawn by `plotters` as SVG or as pixels.
//!
//! Text in PNG files is drawn with a subset of Roboto (Apache-2.0, by Google) that is built in, so that no font has to
//! be installed.

use std::sync::Once;

use foretoken_console::failure::Failure;
use plotters::coord::CoordTranslate;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

/// Width and height of a chart on a wide page, with a legend of one row; others make it higher.
pub const WIDE: (u32, u32) = (860, 400);
/// Width and height of a chart on a narrow page, as on a phone.
pub const NARROW: (u32, u32) = (360, 320);

/// Colours of lines, which colour-blind people can distinguish too.
const COLOURS: [RGBColor; 6] = [
    RGBColor(31, 79, 224),
    RGBColor(168, 74, 0),
    RGBColor(10, 115, 80),
    RGBColor(143, 31, 176),
    RGBColor(90, 60, 0),
    RGBColor(187, 15, 70),
];
/// The number of shapes of marks; lines of the same colour have different shapes.
const SHAPES: usize = 4;
/// Height of a row of the legend.
const ROW: i32 = 18;
/// Marks of several lines in a category are drawn side by side, within this fraction of the category's width.
const CATEGORY_WIDTH: f64 = 0.6;
const TEXT: RGBColor = RGBColor(30, 32, 36);
const GRID: RGBColor = RGBColor(222, 218, 210);

/// A value with its interval, if it has one.
pub struct Mark {
    /// From left to right.
    pub x: f64,
    /// The value.
    pub y: f64,
    /// Its interval.
    pub interval: Option<(f64, f64)>,
}

/// A line: marks of one colour and shape.
pub struct Series {
    /// Its name.
    pub name: String,
    /// Its marks, ascending.
    pub marks: Vec<Mark>,
}

/// One chart.
pub struct Chart {
    /// The name of its files, without ending.
    pub name: &'static str,
    /// Its heading.
    pub title: &'static str,
    /// Its caption.
    pub caption: String,
    /// The label of the x axis, with its unit.
    pub x_label: &'static str,
    /// The label of the y axis, with its unit.
    pub y_label: &'static str,
    /// Names of x = 0, 1, ..., if the x axis has categories.
    pub categories: Vec<String>,
    /// Whether marks are joined.
    pub joined: bool,
    /// Its lines.
    pub lines: Vec<Series>,
}

impl Chart {
    /// The chart as SVG.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn svg(&self, size: (u32, u32)) -> Result<String, Failure> {
        let mut svg = String::new();
        let size = self.with_legend(size);
        self.draw(&SVGBackend::with_string(&mut svg, size).into_drawing_area(), 1).map_err(failed)?;
        Ok(svg)
    }

    /// The chart as a PNG file of twice as many pixels.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn png(&self, size: (u32, u32)) -> Result<Vec<u8>, Failure> {
        let (width, height) = self.with_legend(size);
        let size = (2 * width, 2 * height);
        let mut pixels = vec![0; (size.0 * size.1 * 3) as usize];
        self.draw(&BitMapBackend::with_buffer(&mut pixels, size).into_drawing_area(), 2).map_err(failed)?;
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, size.0, size.1);
        encoder.set_color(png::ColorType::Rgb);
        let written = encoder.write_header().and_then(|mut writer| writer.write_image_data(&pixels));
        written.map_err(|error| Failure::Other(format!("{}.png: {error}", self.name)))?;
        Ok(bytes)
    }

    /// The legend of a chart of this width: pixels for a name, names in a row, and rows; a name takes about seven
    /// pixels a character.
    fn legend(&self, width: u32) -> (i32, i32, i32) {
        let longest = self.lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0);
        let column = 36 + 7 * longest as i32;
        let (lines, per_row) = (self.lines.len() as i32, (width as i32 / column).max(1));
        (column, per_row, (lines + per_row - 1) / per_row)
    }

    /// The size with all rows of the legend, which take nothing from the plot.
    fn with_legend(&self, (width, height): (u32, u32)) -> (u32, u32) {
        let (_, _, rows) = self.legend(width);
        (width, height + (ROW * (rows - 1).max(0)) as u32)
    }

    /// The horizontal offset of a line's marks from their category.
    fn offset(&self, number: usize) -> f64 {
        let step = (CATEGORY_WIDTH / self.lines.len() as f64).min(0.08);
        if self.categories.is_empty() { 0.0 } else { step * (number as f64 - (self.lines.len() - 1) as f64 / 2.0) }
    }

    /// The least and the greatest values across and up, with room around them.
    fn ranges(&self) -> ((f64, f64), (f64, f64)) {
        let marks = || self.lines.iter().flat_map(|line| &line.marks);
        let (mut left, mut right, mut top) = (f64::INFINITY, f64::NEG_INFINITY, 0.0f64);
        for mark in marks() {
            (left, right) = (left.min(mark.x), right.max(mark.x));
            top = top.max(mark.y).max(mark.interval.map_or(0.0, |(_, high)| high));
        }
        let room = if self.categories.is_empty() { ((right - left) * 0.03).max(0.1) } else { 0.3 };
        ((left - room, right + room), (0.0, if top > 0.0 { top * 1.08 } else { 1.0 }))
    }

    fn draw<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, plotters::coord::Shift>,
        scale: i32,
    ) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
        static FONT: Once = Once::new();
        FONT.call_once(|| _ = register_font("sans-serif", FontStyle::Normal, include_bytes!("roboto.ttf")));
        let font = |size: i32| ("sans-serif", size * scale).into_font().color(&TEXT);
        area.fill(&WHITE)?;
        let (column, per_row, rows) = self.legend((area.dim_in_pixel().0 as i32 / scale) as u32);
        for (number, line) in self.lines.iter().enumerate() {
            let (x, y) = (number as i32 % per_row * column, number as i32 / per_row * ROW);
            let at = ((x + 14) * scale, (y + 14) * scale);
            draw_mark(area, number, at, scale)?;
            area.draw(&Text::new(line.name.clone(), (at.0 + 9 * scale, at.1 - 4 * scale), font(12)))?;
        }
        let (_, below) = area.split_vertically((rows * ROW + 8) * scale);
        let ((left, right), (bottom, top)) = self.ranges();
        let mut chart = ChartBuilder::on(&below)
            .margin(10 * scale)
            .set_label_area_size(LabelAreaPosition::Left, 52 * scale)
            .set_label_area_size(LabelAreaPosition::Bottom, 44 * scale)
            .build_cartesian_2d(left..right, bottom..top)?;
        let is_whole = |x: f64| (x - x.round()).abs() < 1e-6;
        // Between whole numbers there are no labels.
        let counts = self.lines.iter().flat_map(|line| &line.marks).all(|mark| is_whole(mark.x));
        let place = |x: &f64| match self.categories.is_empty() {
            true if is_whole(*x) => format!("{x:.0}"),
            true if !counts => format!("{x:.1}"),
            true => String::new(),
            false if !is_whole(*x) => String::new(),
            false => self.categories.get(x.round() as usize).cloned().unwrap_or_default(),
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .x_labels(if self.categories.is_empty() { 8 } else { 2 * self.categories.len() })
            .y_labels(6)
            .x_label_formatter(&place)
            .label_style(font(12))
            .axis_desc_style(font(12))
            .x_desc(self.x_label)
            .y_desc(self.y_label)
            .draw()?;
        for (number, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let offset = self.offset(number);
            let points = line.marks.iter().map(|mark| (mark.x + offset, mark.y));
            if self.joined {
                let path: Vec<(f64, f64)> = points.clone().collect();
                chart.draw_series([PathElement::new(path, colour.stroke_width(2 * scale as u32))])?;
            }
            for point in points {
                draw_mark(chart.plotting_area(), number, point, scale)?;
            }
            let whiskers = line.marks.iter().filter_map(|mark| Some((mark.x + offset, mark.interval?)));
            let whisker =
                |(x, (low, high))| PathElement::new([(x, low), (x, high)], colour.stroke_width(2 * scale as u32));
            chart.draw_series(whiskers.map(whisker))?;
        }
        area.present()
    }
}

/// Draws a mark of a line in its colour and shape.
fn draw_mark<DB: DrawingBackend, CT: CoordTranslate>(
    area: &DrawingArea<DB, CT>,
    number: usize,
    at: CT::From,
    scale: i32,
) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
    let (colour, size) = (COLOURS[number % COLOURS.len()], 4 * scale);
    let pen = colour.stroke_width(2 * scale as u32);
    match number / COLOURS.len() % SHAPES {
        0 => area.draw(&Circle::new(at, size, colour.filled())),
        1 => area.draw(&TriangleMarker::new(at, size + 2 * scale, colour.filled())),
        2 => area.draw(&Cross::new(at, size, pen)),
        _ => area.draw(&Circle::new(at, size, pen)),
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Other(format!("--report: a chart cannot be drawn: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(lines: usize) -> Chart {
        let mark = |x| Mark { x: f64::from(x), y: 1.0, interval: None };
        let line = |number| Series { name: format!("draft+lookup, block, {number}"), marks: vec![mark(0), mark(1)] };
        Chart {
            name: "many",
            title: "Many",
            caption: String::new(),
            x_label: "place",
            y_label: "value",
            categories: vec!["a".to_string(), "b".to_string()],
            joined: false,
            lines: (0..lines).map(line).collect(),
        }
    }

    #[test]
    fn many_lines_stay_in_their_category_and_take_nothing_from_the_plot() {
        for lines in [1, 2, 8, 40] {
            let chart = chart(lines);
            let ((left, _), _) = chart.ranges();
            assert!((0..lines).all(|number| chart.offset(number).abs() < -left), "{lines}");
            let (_, _, rows) = chart.legend(NARROW.0);
            assert_eq!(chart.with_legend(NARROW).1 as i32 - rows * ROW, NARROW.1 as i32 - ROW, "{lines}");
        }
    }

    #[test]
    fn lines_of_one_colour_have_different_marks() {
        let svg = chart(3 * COLOURS.len()).svg(WIDE).unwrap_or_default();
        // Each line has one in the legend and two in the plot.
        assert_eq!(svg.matches("<circle").count(), 3 * COLOURS.len());
        assert_eq!(svg.matches("<polygon").count(), 3 * COLOURS.len());
    }
}

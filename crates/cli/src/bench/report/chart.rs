//! Charts of marks and lines, drawn by `plotters` as SVG or as pixels.
//!
//! Words in pixels are drawn with a part of Roboto (Apache-2.0, by Google) that is a part of the program, so that no
//! font has to be there. Left out: what is drawn.

use std::sync::Once;

use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

use crate::failure::Failure;

/// Width and height of a chart on a wide page.
pub const WIDE: (u32, u32) = (860, 400);
/// The same on a phone.
pub const NARROW: (u32, u32) = (360, 320);

/// Colours of lines, which stay apart for colour-blind people too.
const COLOURS: [RGBColor; 6] = [
    RGBColor(31, 79, 224),
    RGBColor(168, 74, 0),
    RGBColor(10, 115, 80),
    RGBColor(143, 31, 176),
    RGBColor(90, 60, 0),
    RGBColor(187, 15, 70),
];
const TEXT: RGBColor = RGBColor(30, 32, 36);
const GRID: RGBColor = RGBColor(222, 218, 210);

/// A value with its interval, if it has one.
pub struct Mark {
    /// From left to right.
    pub x: f64,
    /// The value.
    pub y: f64,
    /// In which it lies.
    pub interval: Option<(f64, f64)>,
}

/// Marks of one colour.
pub struct Line {
    /// Its name.
    pub name: String,
    /// Its marks, ascending.
    pub marks: Vec<Mark>,
}

/// One chart.
pub struct Chart {
    /// Of its files, without ending.
    pub name: &'static str,
    /// Its heading.
    pub title: &'static str,
    /// What it shows, in a sentence.
    pub caption: String,
    /// What is from left to right, with its unit.
    pub across: &'static str,
    /// What is from below to above, with its unit.
    pub up: &'static str,
    /// Names of the places 0, 1, ... from left to right, where these are no numbers.
    pub places: Vec<String>,
    /// Whether marks are joined.
    pub joined: bool,
    /// What is shown.
    pub lines: Vec<Line>,
}

impl Chart {
    /// The chart as SVG.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn svg(&self, size: (u32, u32)) -> Result<String, Failure> {
        let mut svg = String::new();
        self.draw(&SVGBackend::with_string(&mut svg, size).into_drawing_area(), 1).map_err(failed)?;
        Ok(svg)
    }

    /// The chart as a PNG file of twice as many pixels.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn png(&self, (width, height): (u32, u32)) -> Result<Vec<u8>, Failure> {
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

    /// The least and the greatest values across and up, with room around them.
    fn ranges(&self) -> ((f64, f64), (f64, f64)) {
        let marks = || self.lines.iter().flat_map(|line| &line.marks);
        let (mut left, mut right, mut top) = (f64::INFINITY, f64::NEG_INFINITY, 0.0f64);
        for mark in marks() {
            (left, right) = (left.min(mark.x), right.max(mark.x));
            top = top.max(mark.y).max(mark.interval.map_or(0.0, |(_, high)| high));
        }
        let room = if self.places.is_empty() { ((right - left) * 0.03).max(0.1) } else { 0.3 };
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
        let line_height = 18 * scale;
        let per_row = (area.dim_in_pixel().0 as i32 / (170 * scale)).max(1);
        let legend_rows = (self.lines.len() as i32 + per_row - 1) / per_row;
        for (number, line) in self.lines.iter().enumerate() {
            let (x, y) = (number as i32 % per_row * 170 * scale, number as i32 / per_row * line_height);
            let at = (x + 14 * scale, y + 14 * scale);
            area.draw(&Circle::new(at, 4 * scale, COLOURS[number % COLOURS.len()].filled()))?;
            area.draw(&Text::new(line.name.clone(), (at.0 + 9 * scale, at.1 - 4 * scale), font(12)))?;
        }
        let (_, below) = area.split_vertically(legend_rows * line_height + 8 * scale);
        let ((left, right), (bottom, top)) = self.ranges();
        let mut chart = ChartBuilder::on(&below)
            .margin(10 * scale)
            .set_label_area_size(LabelAreaPosition::Left, 52 * scale)
            .set_label_area_size(LabelAreaPosition::Bottom, 44 * scale)
            .build_cartesian_2d(left..right, bottom..top)?;
        let place = |x: &f64| match self.places.is_empty() {
            true => format!("{x:.0}"),
            false if (x - x.round()).abs() > 1e-6 => String::new(),
            false => self.places.get(x.round() as usize).cloned().unwrap_or_default(),
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .x_labels(if self.places.is_empty() { 8 } else { 2 * self.places.len() })
            .y_labels(6)
            .x_label_formatter(&place)
            .label_style(font(12))
            .axis_desc_style(font(12))
            .x_desc(self.across)
            .y_desc(self.up)
            .draw()?;
        for (number, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            // Lines that share places stand beside each other.
            let aside =
                if self.places.is_empty() { 0.0 } else { 0.08 * (number as f64 - (self.lines.len() - 1) as f64 / 2.0) };
            let points = line.marks.iter().map(|mark| (mark.x + aside, mark.y));
            if self.joined {
                let path: Vec<(f64, f64)> = points.clone().collect();
                chart.draw_series([PathElement::new(path, colour.stroke_width(2 * scale as u32))])?;
            }
            chart.draw_series(points.map(|point| Circle::new(point, 4 * scale, colour.filled())))?;
            let whiskers = line.marks.iter().filter_map(|mark| Some((mark.x + aside, mark.interval?)));
            let whisker =
                |(x, (low, high))| PathElement::new([(x, low), (x, high)], colour.stroke_width(2 * scale as u32));
            chart.draw_series(whiskers.map(whisker))?;
        }
        area.present()
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Other(format!("--report: a chart cannot be drawn: {error}"))
}

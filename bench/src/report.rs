//! Figures, their baselines and their targets; as a table and as JSON.

use lockwarden_testkit::servers::ServerKind;
use serde::Serialize;
use std::fmt::Write;

/// All figures of one run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    machine: Machine,
    rows: Vec<Row>,
}

/// What they were measured on.
#[derive(Debug, Serialize)]
struct Machine {
    cores: usize,
    cpu: String,
    kernel: String,
    server: String,
}

/// One figure.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    benchmark: &'static str,
    figure: String,
    value: f64,
    unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline: Option<Baseline>,
    /// The figure over its baseline: the median over pairs that were measured one after the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<Target>,
    #[serde(skip_serializing_if = "Option::is_none")]
    met: Option<bool>,
}

#[derive(Debug, Serialize)]
struct Baseline {
    name: &'static str,
    value: f64,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Target {
    /// What is bound: the value or the ratio.
    of: Of,
    bound: Bound,
    limit: f64,
    /// Otherwise only aimed for.
    required: bool,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Of {
    Value,
    Ratio,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Bound {
    AtLeast,
    AtMost,
}

impl Row {
    pub(crate) fn new(
        benchmark: &'static str,
        figure: impl Into<String>,
        value: f64,
        unit: &'static str,
    ) -> Row {
        let figure = figure.into();
        Row { benchmark, figure, value, unit, baseline: None, ratio: None, target: None, met: None }
    }

    /// Its baseline; the ratio is that of the two.
    pub(crate) fn beside(self, name: &'static str, value: f64) -> Row {
        let ratio = self.value / value;
        self.beside_paired(name, value, ratio)
    }

    /// Its baseline, and the median ratio of pairs.
    pub(crate) fn beside_paired(mut self, name: &'static str, value: f64, ratio: f64) -> Row {
        self.baseline = Some(Baseline { name, value });
        self.ratio = Some(ratio);
        self
    }

    pub(crate) fn value_at_most(self, limit: f64) -> Row {
        self.bound(Target { of: Of::Value, bound: Bound::AtMost, limit, required: true })
    }

    pub(crate) fn ratio_at_most(self, limit: f64) -> Row {
        self.bound(Target { of: Of::Ratio, bound: Bound::AtMost, limit, required: true })
    }

    pub(crate) fn ratio_at_least(self, limit: f64) -> Row {
        self.bound(Target { of: Of::Ratio, bound: Bound::AtLeast, limit, required: true })
    }

    /// The target is only aimed for.
    pub(crate) fn aim(mut self) -> Row {
        if let Some(target) = &mut self.target {
            target.required = false;
        }
        self
    }

    fn bound(mut self, target: Target) -> Row {
        let measured = match target.of {
            Of::Value => self.value,
            Of::Ratio => self.ratio.unwrap_or(f64::NAN),
        };
        // Neither holds for what could not be measured (NaN).
        self.met = Some(match target.bound {
            Bound::AtLeast => measured >= target.limit,
            Bound::AtMost => measured <= target.limit,
        });
        self.target = Some(target);
        self
    }
}

impl Report {
    pub(crate) fn new(server: ServerKind) -> Report {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        let machine = Machine { cores, cpu: cpu_model(), kernel, server: server.to_string() };
        Report { machine, rows: Vec::new() }
    }

    /// Says on stderr what was found, so that a person sees that it goes on.
    pub(crate) fn push(&mut self, row: Row) {
        eprintln!("{}", cells(&row).join("  "));
        self.rows.push(row);
    }

    pub(crate) fn required_met(&self) -> bool {
        let missed =
            |row: &Row| row.target.is_some_and(|target| target.required) && row.met == Some(false);
        !self.rows.iter().any(missed)
    }

    pub(crate) fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|error| error.to_string())
    }

    pub(crate) fn table(&self) -> String {
        let head = ["benchmark", "figure", "measured", "baseline", "ratio", "target", "met"]
            .map(String::from);
        let rows: Vec<[String; 7]> =
            std::iter::once(head).chain(self.rows.iter().map(cells)).collect();
        let mut widths = [0; 7];
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let Machine { cores, cpu, kernel, server } = &self.machine;
        let mut text = format!("{cores} cores ({cpu}), Linux {kernel}, {server}\n\n");
        for (number, row) in rows.iter().enumerate() {
            for (cell, width) in row.iter().zip(widths) {
                // Writing into a string does not fail.
                let _ = write!(text, "| {cell:width$} ");
            }
            text.push_str("|\n");
            if number == 0 {
                for width in widths {
                    let _ = write!(text, "|{}", "-".repeat(width + 2));
                }
                text.push_str("|\n");
            }
        }
        text
    }
}

fn cells(row: &Row) -> [String; 7] {
    let baseline = row.baseline.as_ref();
    let target = row.target.map(|target| {
        let bound = match target.bound {
            Bound::AtLeast => "≥",
            Bound::AtMost => "≤",
        };
        let (limit, unit) = match target.of {
            Of::Value => (short(target.limit), format!(" {}", row.unit)),
            Of::Ratio => (short(target.limit), " ×".into()),
        };
        let aim = if target.required { "" } else { " (aim)" };
        format!("{bound} {limit}{}{aim}", unit.trim_end())
    });
    [
        row.benchmark.into(),
        row.figure.clone(),
        format!("{} {}", short(row.value), row.unit).trim_end().into(),
        baseline.map_or(String::new(), |it| format!("{} {}", it.name, short(it.value))),
        row.ratio.map_or(String::new(), short),
        target.unwrap_or_default(),
        row.met.map_or("", |met| if met { "yes" } else { "no" }).into(),
    ]
}

/// Three digits that count; whole numbers as they are.
fn short(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return "?".into();
    }
    if value == value.trunc() || size >= 100.0 {
        let digits = format!("{:.0}", size);
        let mut text = String::from(if value < 0.0 { "-" } else { "" });
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index) % 3 == 0 {
                text.push(',');
            }
            text.push(digit);
        }
        return text;
    }
    let decimals = if size >= 10.0 {
        1
    } else if size >= 0.1 {
        2
    } else {
        3
    };
    format!("{value:.decimals$}")
}

fn cpu_model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    line.map_or_else(|| "unknown".into(), |(_, model)| model.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let cases = [
            (150_123.4, "150,123"),
            (1_000.0, "1,000"),
            (2.0, "2"),
            (1.349, "1.35"),
            (15.94, "15.9"),
            (0.029, "0.029"),
            (f64::NAN, "?"),
        ];
        for (value, text) in cases {
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn what_could_not_be_measured_misses_its_target() {
        let mut report = Report::new(ServerKind::Redis70);
        report.push(Row::new("b", "f", 2.0, "µs").beside("x", 1.0).ratio_at_most(1.5).aim());
        assert!(report.required_met());
        report.push(Row::new("b", "f", f64::NAN, "µs").value_at_most(1.0));
        assert!(!report.required_met());
    }
}

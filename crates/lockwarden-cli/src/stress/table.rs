//! The figures as rows: what the table on stdout and the one of the report have in common.

use crate::wire::StressResultJson;

/// A figure of all styles.
pub(super) struct Row {
    pub(super) figure: &'static str,
    /// One for each style.
    pub(super) values: Vec<String>,
}

/// All figures.
pub(super) fn rows(results: &[StressResultJson]) -> Vec<Row> {
    let row = |figure, value: &dyn Fn(&StressResultJson) -> String| Row {
        figure,
        values: results.iter().map(value).collect(),
    };
    let always = [
        row("success", &|it| format!("{:.1} %", it.success_rate * 100.0)),
        row("gave up", &|it| it.gave_up.to_string()),
        row("total time", &|it| format!("{:.2} s", it.total_s)),
        row("best possible", &|it| format!("{:.2} s", it.best_s)),
        row("ratio", &|it| format!("{:.3}", it.ratio)),
        row("response, mean", &|it| ms(it.mean_ms)),
        row("response, p50", &|it| ms(it.p50_ms)),
        row("response, p99", &|it| ms(it.p99_ms)),
        row("response, max", &|it| ms(it.max_ms)),
        row("throughput", &|it| format!("{:.1} orders/s", it.throughput_per_s)),
        row("connections", &|it| it.connections.to_string()),
        row("  per process", &|it| it.connections_per_process.to_string()),
        row("commands", &|it| it.commands.to_string()),
        row("  per acquisition", &|it| {
            it.commands_per_acquisition.map_or_else(|| "-".into(), |each| format!("{each:.1}"))
        }),
        row("keys left", &|it| it.keys_left.to_string()),
        row("violations", &|it| it.violations.to_string()),
        row("deadlocks", &|it| it.deadlocks.to_string()),
    ];
    // What happens in few runs only.
    let seldom = [
        row("  told within", &|it| {
            it.deadlock_told_max_ms.map_or_else(|| "-".into(), |most| ms(Some(most)))
        }),
        row("failed", &|it| it.failed.to_string()),
        row("locks lost", &|it| it.lost.to_string()),
        row("processes killed", &|it| it.killed.to_string()),
        row("orders redone", &|it| it.redone.to_string()),
        row("restarts", &|it| it.restarts.to_string()),
    ];
    let happened = |row: &Row| row.values.iter().any(|it| it != "0" && it != "-");
    always.into_iter().chain(seldom.into_iter().filter(happened)).collect()
}

/// As text, with a column for each style.
pub(super) fn text(results: &[StressResultJson]) -> String {
    let head = Row { figure: "", values: results.iter().map(|it| it.style.to_owned()).collect() };
    let rows: Vec<Row> = std::iter::once(head).chain(rows(results)).collect();
    let width = |column: usize| rows.iter().map(|row| row.values[column].len()).max().unwrap_or(0);
    let mut text = String::new();
    for row in &rows {
        let mut line = format!("{:<18}", row.figure);
        for (column, value) in row.values.iter().enumerate() {
            line += &format!("  {value:>0$}", width(column));
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

fn ms(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |ms| format!("{ms:.1} ms"))
}

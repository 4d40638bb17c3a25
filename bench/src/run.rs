//! `lockwarden run x -- true` on the embedded store beside `flock FILE true`.

use crate::{
    ground::Outcome,
    measure::{median, median_ratio},
    report::{Report, Row},
};
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

pub(crate) fn run(seconds: u64, report: &mut Report) -> Outcome<()> {
    let program = build()?;
    let dir = tempfile::tempdir()?;
    let mut ours = Command::new(program);
    ours.env("LOCKWARDEN_URL", format!("file:{}", dir.path().join("store").display()));
    ours.args(["run", "x", "--", "true"]);
    let mut flock = Command::new("flock");
    flock.arg(dir.path().join("lock")).arg("true");
    let mut alone = Command::new("true");

    let (mut a, mut b, mut c) = (Vec::new(), Vec::new(), Vec::new());
    let end = Instant::now() + Duration::from_secs(seconds.min(10));
    while Instant::now() < end {
        a.push(wall_ms(&mut ours)?);
        b.push(wall_ms(&mut flock)?);
        c.push(wall_ms(&mut alone)?);
    }
    let row = |name, beside: &[f64]| {
        Row::new("run", "lockwarden run x -- true, embedded", median(&a), "ms").beside_paired(
            name,
            median(beside),
            median_ratio(&a, beside),
        )
    };
    report.push(row("flock", &b).ratio_at_most(3.0));
    report.push(row("true alone", &c));
    Ok(())
}

/// The command line, as it is now.
fn build() -> Outcome<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--release", "--quiet", "-p", "lockwarden-cli"]);
    build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")));
    if !build.status()?.success() {
        return Err("the command line does not build".into());
    }
    Ok(std::env::current_exe()?.with_file_name("lockwarden"))
}

fn wall_ms(command: &mut Command) -> Outcome<f64> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let began = Instant::now();
    let status = command.status()?;
    let ms = began.elapsed().as_secs_f64() * 1_000.0;
    if !status.success() {
        return Err(format!("{command:?} ended with {status}").into());
    }
    Ok(ms)
}

//! The progress of a style's run, with live figures: on a terminal only, on stderr.

use super::{
    book::{Book, Ending},
    styles::Style,
};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The bar of one style.
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// Shows nothing where stderr is no terminal.
    pub(super) fn new(style: Style, orders: u32) -> Progress {
        let target = ProgressDrawTarget::stderr();
        let bar = ProgressBar::with_draw_target(Some(u64::from(orders)), target);
        let form = "{prefix:>17} {bar:25} {pos}/{len} orders, {elapsed}: {msg}";
        if let Ok(form) = ProgressStyle::with_template(form) {
            bar.set_style(form);
        }
        bar.set_prefix(style.name());
        // A store that began anew grants nothing for its first seconds.
        bar.set_message("starting");
        bar.tick();
        Progress(bar)
    }

    /// Draws it anew.
    pub(super) fn draw(&self, book: &Book, connections: Option<u64>) {
        if self.0.is_hidden() {
            return;
        }
        let mut words = format!("{} waiting", book.waits());
        let gave_up = book.count(Ending::GaveUp);
        if gave_up > 0 {
            words += &format!(", {gave_up} gave up");
        }
        if book.deadlocks > 0 {
            words += &format!(", {} deadlocks", book.deadlocks);
        }
        if let Some(connections) = connections {
            words += &format!(", {connections} connections");
        }
        self.0.set_message(words);
        self.0.set_position(book.ended() as u64);
        self.0.tick();
    }

    /// Leaves the terminal as it was.
    pub(super) fn end(&self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}

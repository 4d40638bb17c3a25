//! `lockwarden run`: a command that runs while the lock is held.
//!
//! First, while there is one thread only, two children are forked: the [`command`], which waits for
//! the lock on a pipe, and the [`watcher`], which kills the command's whole process group should we
//! be killed. Both identities go into the lock's record, so that a takeover waits until all three
//! have ended (R38). Then the lock is acquired, the command is started, and [`supervise`] passes
//! signals on and stops it in time if the lock is lost.

mod command;
mod names;
mod progress;
mod signals;
mod stopping;
mod supervise;
pub(crate) mod sys;
mod terminal;
mod watcher;

use crate::{
    args::RunArgs,
    exit,
    failure::{self, Failure},
    output, settings,
};
use command::{Command, Plan};
use lockwarden::{Error, Guard, Lock, Settings, Tag, Warden, process, store::url::StoreUrl};
use names::Names;
use progress::Progress;
use rustix::process::Signal;
use signals::Signals;
use std::{
    ffi::OsStr,
    time::{Duration, Instant},
};
use sys::Disposition;
use tokio::sync::watch;
use watcher::Watcher;

/// How long a wait that is given up on a signal may take to tell the store. It must be over within
/// 0.5 s (C45); what the store has not heard by then it concludes from our end.
const GIVE_UP: Duration = Duration::from_millis(300);

/// Runs the command line's command; returns the exit code. Must be called while the process has one
/// thread only.
pub(crate) fn run(store: Option<&OsStr>, args: RunArgs) -> Result<i32, Failure> {
    let began = Instant::now();
    let names = Names::new(&args.names)?;
    let url = settings::absolute(settings::store_url(store)?);
    let parsed: StoreUrl = url.parse()?;
    drop(parsed);

    let blocked = sys::block(&signals::held_back());
    let on_child = Disposition::of(Signal::CHILD);
    if on_child.is_some_and(|it| it.ignores()) {
        // Ignored, the kernel would reap the command itself, and its exit code would be gone.
        Disposition::default().set(Signal::CHILD);
    }
    let owner = settings::owner()?;
    let names_json = names.json(command::NAMES_VARIABLE);
    if names_json.is_none() {
        output::say(format_args!(
            "the names are too long together for {}: the command does not get it",
            command::NAMES_VARIABLE
        ));
    }
    let plan = Plan {
        command: &args.command,
        name: names.first(),
        names_json,
        url: &url,
        owner: &owner,
        blocked,
        on_child,
    };
    let command = Command::fork(&plan)?;
    let mut watcher = Watcher::fork(&command)?;

    let runtime = failure::runtime()?;
    let mut run =
        Run { began, names: &names, url: &url, owner: &owner, args: &args, command: Some(command) };
    let result = runtime.block_on(async {
        let mut signals = Signals::new()?;
        sys::set_blocked(&signals::let_through(blocked));
        run.run(&mut signals, &mut watcher).await
    });
    if let Some(command) = run.command {
        command.give_up();
    }
    watcher.end();
    // Nothing is left for destructors, and a name that is still being looked up must not keep us.
    std::mem::forget(runtime);
    result
}

/// One run.
struct Run<'a> {
    began: Instant,
    names: &'a Names,
    url: &'a str,
    owner: &'a str,
    args: &'a RunArgs,
    /// Until it is started.
    command: Option<Command>,
}

impl Run<'_> {
    async fn run(&mut self, signals: &mut Signals, watcher: &mut Watcher) -> Result<i32, Failure> {
        let Some(command) = &self.command else { return Ok(exit::Code::System.number()) };
        // Ours is the first, which people are shown: it is we who hold the lock.
        let processes =
            vec![process::current(), command.identity().clone(), watcher.identity().clone()];
        let label = self.args.label.as_deref().unwrap_or_default();
        let settings = Settings::new().label(label).owner(self.owner).processes(processes);
        let warden = tokio::select! {
            biased;
            signal = signals.next() => return Ok(exit::by_signal(signal.as_raw())),
            warden = settings.connect(self.url) => warden?,
        };
        let mut progress = Progress::new(self.names, self.args.quiet);
        let acquired = tokio::select! {
            biased;
            // First: of a signal and a grant that come together the signal counts (C45).
            signal = signals.next() => Err(signal),
            acquired = self.acquire(&warden, &mut progress) => Ok(acquired),
        };
        progress.clear();
        let guard = match acquired {
            Err(signal) => {
                let _ = tokio::time::timeout(GIVE_UP, warden.close()).await;
                return Ok(exit::by_signal(signal.as_raw()));
            }
            Ok(Err(error)) => {
                let _ = tokio::time::timeout(GIVE_UP, warden.close()).await;
                return Err(error.into());
            }
            Ok(Ok(guard)) => guard,
        };
        signals.take_running();
        // Started: from here on it ends only in `supervise`.
        let Some(command) = self.command.take() else { return Ok(exit::Code::System.number()) };
        let held = supervise::Held { warden: &warden, names: self.names, guard };
        supervise::supervise(self.args, held, command, watcher, signals).await
    }

    async fn acquire(&self, warden: &Warden, progress: &mut Progress<'_>) -> Result<Guard, Error> {
        let (report, waiting) = watch::channel(lockwarden::Waiting::default());
        let lock = warden
            .lock_all(self.names.iter())
            .lease(self.args.lease)
            .grace(self.args.grace)
            .hold_at_least(self.args.at_least)
            .lock_delay(self.args.lock_delay)
            .report_to(report)
            // Ours says nothing about the command.
            .site("");
        let tagged = |lock: Lock, tag: &Tag| lock.tag(&tag.key, &tag.value);
        let lock = self.args.tags.iter().fold(lock, tagged);
        let lock = match (self.args.shared, self.args.permits) {
            (true, _) => lock.shared(),
            (_, Some((count, of))) => lock.permits(count, of),
            _ => lock,
        };
        let lock = match self.args.at_most {
            Some(most) => lock.hold_at_most(most),
            None => lock,
        };
        let lock = match self.args.wait {
            _ if self.args.no_wait => lock.no_wait(),
            None => lock.wait_forever(),
            Some(wait) if wait.is_zero() => lock.no_wait(),
            // What connecting has cost is part of the wait (C24); but a wait stays one.
            Some(wait) => {
                let left = wait.saturating_sub(self.began.elapsed());
                lock.wait_for(left.max(Duration::from_millis(1)))
            }
        };
        let tried = async {
            match lock.acquire().await {
                // The store did not even answer: that is no busy lock (C37), and a wait, however
                // short, has one whole try in it (C25).
                Err(Error::TimedOut { told: None, .. }) => lock.clone().no_wait().acquire().await,
                tried => tried,
            }
        };
        tokio::select! {
            biased;
            acquired = tried => acquired,
            () = progress.follow(waiting) => std::future::pending().await,
        }
    }
}

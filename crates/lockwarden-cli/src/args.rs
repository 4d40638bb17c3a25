//! The command line as values. Nothing here acts.

use crate::{
    duration::{self, DurationError},
    exit,
};
use clap::{Args, Parser, Subcommand, ValueEnum};
use lockwarden::{Tag, limits};
use std::{ffi::OsString, time::Duration};

mod stress;

pub(crate) use stress::{OrdersArgs, Scenario, StressArgs};

/// Locks that hold across processes and machines.
#[derive(Debug, Parser)]
#[command(name = "lockwarden", version, about, max_term_width = 100)]
#[command(after_help = "Try: lockwarden run nightly-report -- ./report.sh")]
#[command(after_long_help = exit::table())]
pub(crate) struct Cli {
    /// Where the locks are: file:DIR, redis://…, rediss://…, unix://… or memory:
    ///
    /// Without it the value of LOCKWARDEN_URL is used, and without that the embedded store in
    /// $XDG_STATE_HOME/lockwarden, which is ~/.local/state/lockwarden where that is not set.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) store: Option<OsString>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    // What each does stands at its arguments.
    Run(RunArgs),
    Ls(LsArgs),
    Show(ShowArgs),
    Graph(GraphArgs),
    Revoke(RevokeArgs),
    Recall(RecallArgs),
    Wait(WaitArgs),
    Stress(StressArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

/// Run a command while holding a lock, or several at once.
///
/// Several locks are granted together, released together, and lost together; while we wait, none of
/// them is held, so that no order has to be kept. Without --wait or --no-wait it waits for ever.
/// The command gets LOCKWARDEN_NAME (of several the first), LOCKWARDEN_NAMES (all, as a JSON array),
/// LOCKWARDEN_FENCE (a number that grows with every grant: give it to whatever must refuse older
/// holders), LOCKWARDEN_TOKEN (the proof of this one), LOCKWARDEN_OWNER (who it is: a `run` inside
/// the command is a part of it, so that deadlocks are found) and LOCKWARDEN_URL (the store; with
/// its password, if it has one).
#[derive(Debug, Args)]
#[command(after_long_help = run_help())]
pub(crate) struct RunArgs {
    /// The locks, 1,000 at most: each any UTF-8 text of 1 to 4096 bytes. The same again is one.
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<OsString>,
    /// Hold them together with other readers; a `run` without it waits for all of these.
    #[arg(long, conflicts_with = "permits")]
    pub(crate) shared: bool,
    /// Hold N of the M permits of each: at most M at the same time. Everybody must say the same M.
    #[arg(long, value_name = "N/M", value_parser = permits, allow_hyphen_values = true)]
    pub(crate) permits: Option<(u32, u32)>,
    /// Wait at most this long: 300ms, 5s, 2m, 1h. 0s is one try.
    #[arg(long, value_name = "DUR", value_parser = duration::wait, conflicts_with = "no_wait")]
    #[arg(allow_hyphen_values = true)]
    pub(crate) wait: Option<Duration>,
    /// Do not wait: exit with 75 at once if the lock is not free.
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// How long the lock lives without renewal; it is renewed every third of it.
    ///
    /// Recovery: if this machine vanishes or freezes, the next holder waits up to this long.
    #[arg(long, value_name = "DUR", value_parser = duration::lease, default_value = "30s")]
    #[arg(allow_hyphen_values = true)]
    pub(crate) lease: Duration,
    /// How long the lock outlives its link to the store; 3s at least.
    ///
    /// The command is stopped when the store has not answered for this long, so a longer one rides
    /// out longer outages. Recovery: if only the processes die, the next holder on this machine
    /// gets the lock within milliseconds, one elsewhere within GRACE + 1.5s.
    #[arg(long, value_name = "DUR", value_parser = duration::grace, default_value = "10s")]
    #[arg(allow_hyphen_values = true)]
    pub(crate) grace: Duration,
    /// How long the lock is held at least: a job that is short must not run twice in its period.
    ///
    /// When the command ends before, we are done, but nobody gets the lock until then; so it is if the command is
    /// killed or its machine vanishes.
    #[arg(long, value_name = "DUR", value_parser = duration::at_least, default_value = "0s")]
    #[arg(allow_hyphen_values = true)]
    pub(crate) at_least: Duration,
    /// If the lock is lost by a crash, nobody gets it for this long.
    ///
    /// So that what the lost command has sent elsewhere has arrived by then, or failed.
    #[arg(long, value_name = "DUR", value_parser = duration::lock_delay, default_value = "0s")]
    #[arg(allow_hyphen_values = true)]
    pub(crate) lock_delay: Duration,
    /// How long the lock is held at most: then it is lost, and the command is stopped for it.
    #[arg(long, value_name = "DUR", value_parser = duration::at_most, allow_hyphen_values = true)]
    pub(crate) at_most: Option<Duration>,
    /// What people read about this holder, in `lockwarden show` say; 256 bytes at most.
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// Tell people something more about this holder, in `lockwarden show` say. May be repeated.
    ///
    /// 16 tags at most; a key of 1 to 64 letters, digits and ._-, a value of 256 bytes at most, 1 KiB in all.
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = tag, allow_hyphen_values = true)]
    pub(crate) tags: Vec<Tag>,
    /// What becomes of the command when the lock is lost or about to be.
    #[arg(long, value_name = "WHAT", default_value = "term")]
    pub(crate) on_lost: OnLost,
    /// What becomes of the command when someone asks for the lock (`lockwarden recall`).
    #[arg(long, value_name = "WHAT", default_value = "ignore")]
    pub(crate) on_recall: OnRecall,
    /// How long the command may take to end after SIGTERM reached it through us.
    #[arg(long, value_name = "DUR", value_parser = duration::any, default_value = "10s")]
    #[arg(allow_hyphen_values = true)]
    pub(crate) kill_after: Duration,
    /// Do not say who holds the lock while waiting.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The command and its arguments, passed on byte for byte, no shell in between.
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

/// What stands behind `--permits`.
fn permits(text: &str) -> Result<(u32, u32), String> {
    let rule = "permits are N/M, as in 2/8: two of eight";
    let (count, of) = text.split_once('/').ok_or(rule)?;
    let number = |text: &str| text.parse::<u32>().map_err(|_| rule);
    let (count, of) = (number(count)?, number(of)?);
    limits::permits(count, of).map_err(|error| error.to_string())?;
    Ok((count, of))
}

/// What stands behind `--tag`.
fn tag(text: &str) -> Result<Tag, String> {
    let Some((key, value)) = text.split_once('=') else {
        return Err("a tag is KEY=VALUE".into());
    };
    Tag::new(key, value).map_err(|error| error.to_string())
}

/// What becomes of the command when the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// SIGTERM 2 s before the lock may be another's, SIGKILL at that time.
    Term,
    /// SIGKILL at the time when the lock may be another's.
    Kill,
    /// Say so on stderr, and let it run.
    Warn,
}

/// What becomes of the command when someone asks for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnRecall {
    /// Say so on stderr, and let it run.
    Ignore,
    /// SIGTERM, and SIGKILL when --kill-after is over.
    Term,
}

/// List the locks that are held or waited for, by name.
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Only names that match: * is any text, ? any character, [a-z] one of these, \ quotes.
    pub(crate) pattern: Option<OsString>,
    /// Count the store's other text keys, too (Redis: strings that are no locks of ours).
    #[arg(long)]
    pub(crate) foreign: bool,
    /// One JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show who holds a lock, and who waits for it, in order.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The lock.
    pub(crate) name: OsString,
    /// One JSON object instead of words.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print who waits for whom: the locks that are waited for, their holders and their queues.
///
/// A cycle cannot stand there for long: whoever would close one is told so at once (exit code 76 of run).
#[derive(Debug, Args)]
pub(crate) struct GraphArgs {
    /// Only names that match, as in `ls`.
    pub(crate) pattern: Option<OsString>,
    /// A graph in the DOT language, for `dot -Tsvg` say, instead of words.
    #[arg(long, conflicts_with = "json")]
    pub(crate) dot: bool,
    /// One JSON object instead of words.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Take a lock away from the holder with this token; another holder is never hurt.
///
/// The holder is told at once. Without --delayed the next one may be granted before the holder has
/// heard of it, and only the fence protects what the lock guards.
#[derive(Debug, Args)]
pub(crate) struct RevokeArgs {
    /// The lock.
    pub(crate) name: OsString,
    /// The holder's token, as `lockwarden show` prints it.
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    pub(crate) token: OsString,
    /// Let it end within 3 s, so that the holder stops believing before anyone else is granted.
    #[arg(long)]
    pub(crate) delayed: bool,
    /// One JSON object instead of words.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Ask the holder of a lock to give it up. Nothing else changes: the holder decides.
///
/// A program hears it if it listens (`Guard::recalled`); `lockwarden run` does what its --on-recall
/// says. What is told may be lost, so whoever still wants the lock asks again.
#[derive(Debug, Args)]
pub(crate) struct RecallArgs {
    /// The lock.
    pub(crate) name: OsString,
    /// Only the holder with this token, as `lockwarden show` prints it; else whoever holds it now.
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    pub(crate) token: Option<OsString>,
    /// One JSON object instead of words.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Wait until nobody holds the lock. Queues for nothing, takes nothing.
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// The lock.
    pub(crate) name: OsString,
    /// Wait at most this long, then exit with 75.
    #[arg(long, value_name = "DUR", value_parser = duration::wait, allow_hyphen_values = true)]
    pub(crate) wait: Option<Duration>,
    /// One JSON object instead of nothing.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print the completions for a shell.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// For which shell.
    pub(crate) shell: clap_complete::Shell,
}

/// Print the man page of the program or of one of its commands.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Of this command: run, ls, stress orders, …
    pub(crate) command: Vec<String>,
}

/// What of `run` no single option explains.
fn run_help() -> String {
    format!(
        "\
Examples:
  lockwarden run nightly -- ./report.sh
  lockwarden run stock:17 user:4 --wait 5m -- ./move-order.sh
  lockwarden run catalog --shared -- ./export.sh
  lockwarden run gpu --permits 1/4 -- ./train.sh

Signals:
  Waiting: any of HUP, INT, QUIT, USR1, USR2, ALRM and TERM ends the wait at once; nothing is left
  behind, the command never starts, and the exit code is 128+n.
  Running: these and WINCH are passed on to the command's process group, and we wait for its end.
  When it has not ended --kill-after (10s) after a TERM, or after a second INT or TERM, its group
  is killed, and then the lock is released. Signals that were ignored when we started stay ignored.
  Stopping it by ^Z stops us, too, and with us the renewal: it must go on before the lease and
  the grace are over, or it is killed.

The command's process group:
  The command runs in a group of its own, and the whole group dies with us, even by SIGKILL: a
  watcher process sees to that, and the next holder on this machine is let in only when runner,
  command and watcher have ended. What the command leaves running in its group is killed when
  it ends. What has left the group (setsid, daemons) is outside: neither killed nor waited for.

When the lock is lost:
  The command must have ended before anyone else can hold the lock: by the end of the lease, and
  GRACE after the store's last answer. --on-lost=term sends SIGTERM {TERM_S} s before that (a quarter of
  LEASE or of GRACE before it, if that is less), then SIGKILL; both at once if the lock is gone
  already, with {TERM_S} s at most in between. Then the exit code is 74, whatever the command's was. If
  the command had ended by itself before it was told to, the code is its own, and stderr says
  what happened.

If the store is away when the command ends, the release is tried for {RELEASE_S} s; after that the lock
ends by itself, within LEASE. The exit code is the command's.

{}",
        exit::table()
    )
}

/// As in [`run_help`]; the same numbers rule [`crate::run`].
pub(crate) const TERM_S: u64 = 2;
/// As in `lockwarden::Guard::release`.
const RELEASE_S: u64 = 5;

/// The parsers' common error, named for clap.
pub(crate) type Parsed = Result<Duration, DurationError>;

//! Real child processes: start, kill, stop, continue; and waiting for a condition with a deadline.

use std::io;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// How long a killed, stopped or continued process may take to be seen so. Generous: the kernel acts
/// within milliseconds, but a busy machine may not.
const SIGNAL_DEADLINE: Duration = Duration::from_secs(10);

/// Waits until `condition` holds, asking at short intervals.
///
/// # Panics
/// With the caller's place, if it does not hold within `deadline`.
#[track_caller]
pub fn eventually(deadline: Duration, mut condition: impl FnMut() -> bool) {
    if poll_until(deadline, || condition().then_some(())).is_none() {
        panic!("the condition did not come true within {deadline:?}");
    }
}

/// Asks `question` at short intervals until it answers `Some`; `None` if it does not within `deadline`.
/// It is asked at least once.
pub fn poll_until<T>(deadline: Duration, mut question: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + deadline;
    let mut pause = Duration::from_micros(200);
    loop {
        if let Some(answer) = question() {
            return Some(answer);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

/// A child process that does not outlive its test: it is killed when this is dropped, and by the kernel
/// when the test's own process ends in any way, SIGKILL included.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts the command.
    ///
    /// # Errors
    /// What the operating system answers, for instance that there is no such program.
    pub fn spawn(command: Command) -> io::Result<Process> {
        let (answer, answered) = mpsc::channel();
        // The kernel ties the death signal to the thread that forked, not to its process, so a child of
        // a short-lived thread (a pool's, say) would die early. One thread that never ends forks all.
        spawner().send((command, answer)).expect("the spawning thread never ends");
        let child = answered.recv().expect("the spawning thread answers")?;
        Ok(Process { child })
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The child's own handle, for its standard streams.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Whether it has not ended yet. A stopped process is running in this sense.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("asking for one's own child works").is_none()
    }

    /// Sends SIGKILL and waits until the process is gone. Does nothing if it already is.
    pub fn kill9(&mut self) {
        if self.is_running() {
            self.child.kill().expect("killing one's own child works");
            self.child.wait().expect("waiting for one's own child works");
        }
    }

    /// Sends SIGTERM, and does not wait.
    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGSTOP and waits until every thread of the process stands still.
    pub fn stop(&mut self) {
        self.signal(Signal::STOP);
        self.await_threads("stop", |state| state == 'T');
    }

    /// Sends SIGCONT and waits until no thread stands still.
    pub fn cont(&mut self) {
        self.signal(Signal::CONT);
        self.await_threads("continue", |state| state != 'T');
    }

    /// Waits until it ends by itself; `None` if it does not within `deadline`.
    pub fn wait_exit(&mut self, deadline: Duration) -> Option<ExitStatus> {
        poll_until(deadline, || self.child.try_wait().expect("asking for one's own child works"))
    }

    fn signal(&mut self, signal: Signal) {
        // Asking first also makes sure that the id is not that of an ended child, free for reuse.
        assert!(self.is_running(), "process {} has ended", self.id());
        rustix::process::kill_process(Pid::from_child(&self.child), signal)
            .expect("signalling one's own child works");
    }

    fn await_threads(&mut self, what: &str, wanted: impl Fn(char) -> bool) {
        let id = self.id();
        poll_until(SIGNAL_DEADLINE, || {
            let states = thread_states(id)?;
            (!states.is_empty() && states.into_iter().all(&wanted)).then_some(())
        })
        .unwrap_or_else(|| panic!("process {id} did not {what} within {SIGNAL_DEADLINE:?}"));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Not kill9: a drop must not panic. An error means that it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The state letters of all threads of a process, as in `ps`; `None` if the process is gone.
fn thread_states(id: u32) -> Option<Vec<char>> {
    let threads = std::fs::read_dir(format!("/proc/{id}/task")).ok()?;
    let state_of = |stat: String| {
        // The name, in parentheses, may itself contain any character.
        stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next())
    };
    // A thread that ends meanwhile does not count.
    let stats = threads
        .flatten()
        .filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    Some(stats.filter_map(state_of).collect())
}

/// Runs `close`, which closes sockets, while no child is between fork and exec. Such a child has copies of
/// all our descriptors, and a socket is closed for the other side only when its last copy is.
pub(crate) fn while_not_forking<T>(close: impl FnOnce() -> T) -> T {
    let _no_fork = FORKING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    close()
}

static FORKING: Mutex<()> = Mutex::new(());

type Order = (Command, mpsc::Sender<io::Result<Child>>);

fn spawner() -> mpsc::Sender<Order> {
    static SPAWNER: OnceLock<Mutex<mpsc::Sender<Order>>> = OnceLock::new();
    let start = || {
        let (orders, inbox) = mpsc::channel::<Order>();
        std::thread::Builder::new()
            .name("spawner".into())
            .spawn(move || {
                for (mut command, answer) in inbox {
                    die_with_parent(&mut command);
                    // Spawning returns only after exec.
                    let spawned = while_not_forking(|| command.spawn());
                    // The asking thread waits, so it is there to hear the answer.
                    let _ = answer.send(spawned);
                }
            })
            .expect("a thread can be started");
        Mutex::new(orders)
    };
    SPAWNER.get_or_init(start).lock().expect("sending does not panic").clone()
}

#[expect(
    unsafe_code,
    reason = "the standard library has no safe way to run code between fork and exec"
)]
fn die_with_parent(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    let parent = rustix::process::getpid();
    let ask = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the call above: then no signal would ever come.
        if rustix::process::getppid() != Some(parent) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed. `ask` makes two system
    // calls and neither allocates nor locks (both error conversions are without allocation).
    unsafe { command.pre_exec(ask) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::process::Stdio;

    const SOON: Duration = Duration::from_secs(10);

    fn cat() -> Process {
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Process::spawn(command).unwrap()
    }

    fn exists(id: u32) -> bool {
        std::path::Path::new(&format!("/proc/{id}")).exists()
    }

    #[test]
    fn eventually_comes_back_as_soon_as_the_condition_holds() {
        let mut asked = 0;
        eventually(SOON, || {
            asked += 1;
            asked == 5
        });
        assert_eq!(asked, 5);
    }

    #[test]
    #[should_panic(expected = "did not come true within 20ms")]
    fn eventually_gives_up_at_the_deadline() {
        eventually(Duration::from_millis(20), || false);
    }

    #[test]
    fn a_missing_program_is_an_error() {
        let error = Process::spawn(Command::new("/no/such/program")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_stopped_process_does_nothing_until_continued() {
        let mut process = cat();
        let mut input = process.child().stdin.take().unwrap();
        let mut output = BufReader::new(process.child().stdout.take().unwrap());
        process.stop();
        assert!(process.is_running());
        assert_eq!(thread_states(process.id()), Some(vec!['T']));
        input.write_all(b"hello\n").unwrap();
        let stat = || std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
        assert!(stat().contains(") T "));
        process.cont();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "hello\n");
        drop(input);
        assert!(process.wait_exit(SOON).unwrap().success());
    }

    #[test]
    fn killing_works_on_a_stopped_process_too() {
        let mut process = cat();
        process.stop();
        let id = process.id();
        process.kill9();
        assert!(!process.is_running());
        assert!(!exists(id));
        process.kill9();
    }

    #[test]
    fn dropping_leaves_nothing() {
        let process = cat();
        let id = process.id();
        assert!(exists(id));
        drop(process);
        assert!(!exists(id));
    }

    #[test]
    fn a_child_outlives_the_thread_that_asked_for_it() {
        let mut process = std::thread::spawn(cat).join().unwrap();
        // Were it tied to that thread it would be dead by now, or at the latest after a round trip.
        let mut input = process.child().stdin.take().unwrap();
        let mut output = BufReader::new(process.child().stdout.take().unwrap());
        input.write_all(b"alive\n").unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "alive\n");
    }

    /// Runs as a child of the next test, which sets the variable: starts a process, says which, and hangs.
    #[test]
    fn parent_to_be_killed() {
        if std::env::var_os("LOCKWARDEN_TESTKIT_PARENT").is_none() {
            return;
        }
        // Not `cat`, which would end by itself with its input.
        let mut endless = Command::new("tail");
        endless.args(["-f", "/dev/null"]).stdin(Stdio::null()).stdout(Stdio::null());
        let grandchild = Process::spawn(endless).unwrap();
        println!("grandchild={}", grandchild.id());
        // Until killed; returns only if the parent itself is gone.
        let _ = std::io::stdin().read_line(&mut String::new());
    }

    #[test]
    fn children_die_with_a_killed_test() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "--nocapture", "process::tests::parent_to_be_killed"])
            .env("LOCKWARDEN_TESTKIT_PARENT", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut parent = Process::spawn(command).unwrap();
        let output = BufReader::new(parent.child().stdout.take().unwrap());
        let grandchild = output
            .lines()
            .find_map(|line| {
                let line = line.unwrap();
                Some(line.split_once("grandchild=")?.1.parse::<u32>().unwrap())
            })
            .expect("the child says which process it started");
        assert!(exists(grandchild));
        parent.kill9();
        // Orphans are collected by whoever is process 1; a zombie is dead enough.
        eventually(SOON, || {
            thread_states(grandchild).is_none_or(|states| states.iter().all(|s| *s == 'Z'))
        });
    }
}

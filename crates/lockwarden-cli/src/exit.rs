//! The exit codes, once: `--help`, the man page and `docs/CLI.md` take them from here.

/// Why we end. The numbers follow sysexits(3) and the shells where these have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// All went well; `run` gives the command's own code.
    Ok,
    /// `revoke`, `recall`: nobody holds the lock with this token, or nobody who can be asked.
    NotHeld,
    /// A usage error, or a value that breaks its rule.
    Usage,
    /// The store is unavailable or refuses us.
    Unavailable,
    /// `stress`: two held one lock at the same time.
    Violated,
    /// The operating system refused a process, a pipe or an output.
    System,
    /// The lock was lost, and the command was stopped for it.
    Lost,
    /// The lock is busy, or the wait ended before it was free.
    Busy,
    /// Waiting would have been a deadlock.
    Deadlock,
    /// The command could not be executed.
    NotExecutable,
    /// The command was not found.
    NotFound,
}

impl Code {
    const ALL: [Code; 11] = [
        Code::Ok,
        Code::NotHeld,
        Code::Usage,
        Code::Unavailable,
        Code::Violated,
        Code::System,
        Code::Lost,
        Code::Busy,
        Code::Deadlock,
        Code::NotExecutable,
        Code::NotFound,
    ];

    /// The number.
    pub(crate) const fn number(self) -> i32 {
        match self {
            Code::Ok => 0,
            Code::NotHeld => 1,
            Code::Usage => 64,
            Code::Unavailable => 69,
            Code::Violated => 70,
            Code::System => 71,
            Code::Lost => 74,
            Code::Busy => 75,
            Code::Deadlock => 76,
            Code::NotExecutable => 126,
            Code::NotFound => 127,
        }
    }

    const fn meaning(self) -> &'static str {
        match self {
            Code::Ok => "done; `run` exits with the command's own code, whatever it is",
            Code::NotHeld => {
                "revoke, recall: nobody holds the lock with this token, or nobody who can be asked"
            }
            Code::Usage => "usage error, or a value that breaks its rule",
            Code::Unavailable => "the store is unavailable or refuses us; the command did not run",
            Code::Violated => "stress: two held one lock at the same time",
            Code::System => "the system refused a process, a pipe or an output",
            Code::Lost => "the lock was lost, and the command was stopped for it",
            Code::Busy => "the lock is busy, or the wait ended first; the command did not run",
            Code::Deadlock => "waiting would have been a deadlock; the command did not run",
            Code::NotExecutable => "the command could not be executed",
            Code::NotFound => "the command was not found",
        }
    }

    /// Ends the process.
    pub(crate) fn exit(self) -> ! {
        std::process::exit(self.number())
    }
}

/// The code of an end by a signal.
pub(crate) const fn by_signal(signal: i32) -> i32 {
    128 + signal
}

/// All codes with their meanings.
pub(crate) fn table() -> String {
    let row = |number: &str, meaning: &str| format!("  {number:<6} {meaning}\n");
    let mut table = String::from("Exit codes:\n");
    for code in Code::ALL {
        table += &row(&code.number().to_string(), code.meaning());
    }
    table + &row("128+n", "signal n ended the command, or the wait for the lock")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fact written twice is tested.
    #[test]
    fn the_documentation_has_the_same_table() {
        let docs = include_str!("../../../docs/CLI.md");
        for code in Code::ALL {
            let row = format!("| {} | {} |", code.number(), code.meaning());
            assert!(docs.contains(&row), "docs/CLI.md lacks the row\n{row}");
        }
    }
}

//! Why a command of ours failed, and the exit code of each.

use crate::{exit::Code, settings::StoreChoiceError, stress::StressError};
use lockwarden::{
    Error, Name,
    error::{StoreError, describe},
};
use std::io;
use thiserror::Error as ThisError;

/// Why a command of ours failed.
#[derive(Debug, ThisError)]
pub(crate) enum Failure {
    /// What the library says.
    #[error(transparent)]
    Library(#[from] Error),
    /// No store could be chosen.
    #[error(transparent)]
    Store(#[from] StoreChoiceError),
    /// The lock that was to be revoked is not held with that token.
    #[error("nothing was revoked: nobody holds the lock {name} with this token")]
    NotHeld { name: Name },
    /// The lock that was to be recalled is not held, or not with that token.
    #[error("nobody was asked: nobody holds the lock {name}, or not with this token")]
    NotAsked { name: Name },
    /// The lock did not become free.
    #[error("the lock {name} is not free after {waited_ms} ms: {}", told(.holder.as_deref()))]
    NotFree { name: Name, waited_ms: u128, holder: Option<Box<lockwarden::HolderView>> },
    /// There is no man page of that command.
    #[error("there is no command {0:?}")]
    NoSuchCommand(String),
    /// What only `stress` fails at.
    #[error(transparent)]
    Stress(#[from] StressError),
    /// The operating system refused something.
    #[error("cannot {what}: {source}")]
    System { what: &'static str, source: io::Error },
}

impl Failure {
    /// A refusal of the operating system.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Failure {
        move |source| Failure::System { what, source }
    }

    /// The exit code.
    pub(crate) fn code(&self) -> Code {
        match self {
            Failure::Library(error) => of_library(error),
            Failure::Stress(error) => error.code(),
            Failure::Store(_) | Failure::NoSuchCommand(_) => Code::Usage,
            Failure::NotHeld { .. } | Failure::NotAsked { .. } => Code::NotHeld,
            Failure::NotFree { .. } => Code::Busy,
            Failure::System { .. } => Code::System,
        }
    }
}

/// The exit code of what the library says.
pub(crate) fn of_library(error: &Error) -> Code {
    match error {
        Error::Busy { .. } | Error::TimedOut { .. } | Error::Guarded { .. } => Code::Busy,
        Error::Lost { .. } | Error::ReleasedOrLost { .. } => Code::Lost,
        Error::Deadlock { .. } | Error::TooDeep { .. } => Code::Deadlock,
        Error::Foreign { .. } | Error::Endless { .. } | Error::NotHandedOver { .. } => {
            Code::NotHeld
        }
        Error::OtherMode { .. } | Error::Store(StoreError::Invalid { .. }) | Error::Invalid(_) => {
            Code::Usage
        }
        Error::Store(_) | Error::Closed => Code::Unavailable,
    }
}

fn told(holder: Option<&lockwarden::HolderView>) -> String {
    holder.map_or_else(|| "others wait for it".to_owned(), describe)
}

/// The runtime of one command: on this thread, for a command line has no need of more, and starting
/// threads costs a third of what a whole `run` may take.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::system("start the runtime"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockwarden::{Absence, Effect, Loss, Trouble};
    use std::time::Duration;

    /// The exit codes of the library's errors are those of its table.
    #[test]
    fn exit_codes_are_those_of_the_table() {
        let name = Name::new("x").unwrap();
        let (place, detail) = (String::new(), String::new());
        let (trouble, effect) = (Trouble::Unreachable, Effect::NotApplied);
        let loss = Loss::NotHeld(Absence::Free);
        let errors = [
            Error::Busy { name: name.clone(), told: None },
            Error::TimedOut { name: name.clone(), waited: Duration::ZERO, told: None },
            Error::Lost { name: name.clone(), loss },
            Error::ReleasedOrLost { name: name.clone() },
            Error::Deadlock { name: name.clone(), cycle: Vec::new() },
            Error::TooDeep { name: name.clone(), most: 0 },
            Error::OtherMode {
                name: name.clone(),
                asked: lockwarden::Mode::Shared,
                in_use: lockwarden::Mode::Exclusive,
            },
            Error::Foreign { name: name.clone() },
            Error::Endless { name: name.clone() },
            Error::NotHandedOver { name: name.clone(), absence: Absence::Taken },
            Error::Guarded { name, left: Duration::ZERO },
            Error::Store(StoreError::Denied { place: place.clone(), detail: detail.clone() }),
            Error::Store(StoreError::Unavailable { place, trouble, detail, effect }),
            Error::Invalid(String::new()),
            Error::Closed,
        ];
        let table = include_str!("../../lockwarden/codes.toml");
        let mut rows = 0;
        for row in table.split("[[code]]").skip(1) {
            let field = |key: &str| {
                let line = row.lines().find_map(|line| line.strip_prefix(&format!("{key} = ")));
                line.map(|it| it.trim_matches('"').to_owned()).unwrap()
            };
            let error = errors.iter().find(|it| it.code() == field("code"));
            let error = error.unwrap_or_else(|| panic!("no error for {}", field("code"))).clone();
            assert_eq!(Failure::Library(error).code().number().to_string(), field("exit"));
            rows += 1;
        }
        assert_eq!(rows, errors.len());
    }
}

//! Which store is meant, and what a name is.

use crate::{failure::Failure, output};
use lockwarden::{Error, Name, Token, limits};
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
};
use thiserror::Error as ThisError;

/// The variable that names the store.
pub(crate) const URL_VARIABLE: &str = "LOCKWARDEN_URL";

/// Why no store could be chosen.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
pub(crate) enum StoreChoiceError {
    /// Nobody named one, and there is no home for the embedded one.
    #[error(
        "no store is chosen, and the embedded one has no home: neither XDG_STATE_HOME nor HOME is \
         set, and the user database has no home for this user; name a store with --store URL (or \
         {URL_VARIABLE}), as in --store file:/var/lib/locks"
    )]
    NoHome,
    /// It is not even text.
    #[error("{place} is not UTF-8: {url:?}; name a store with --store URL")]
    NotUtf8 { place: &'static str, url: String },
    /// `--store ""`.
    #[error("--store needs a URL, as in file:/var/lib/locks or redis://localhost")]
    Empty,
}

/// Who we are part of, in the environment of a `run`'s command.
pub(crate) const OWNER_VARIABLE: &str = "LOCKWARDEN_OWNER";

/// The owner of a `run`, which nobody else has. Inside the command of another `run` it is a part of that one's owner,
/// which waits for us.
pub(crate) fn owner() -> Result<String, Error> {
    let own = lockwarden::new_owner()?;
    let Some(outer) = std::env::var_os(OWNER_VARIABLE).filter(|outer| !outer.is_empty()) else {
        return Ok(own);
    };
    let outer = outer.to_string_lossy();
    let checked = lockwarden::name::owner(&outer);
    checked.map_err(|error| Error::Invalid(format!("the value of {OWNER_VARIABLE}: {error}")))?;
    let part = format!("{outer}/{own}");
    if part.len() > limits::MAX_OWNER_BYTES {
        // It works all the same; only a cycle with those outside is not found.
        output::say(
            "nested too deeply: deadlocks with the outer commands are not noticed from here on",
        );
        return Ok(own);
    }
    Ok(part)
}

/// The URL of the store: `--store`, else `LOCKWARDEN_URL`, else the embedded one of this user.
pub(crate) fn store_url(option: Option<&OsStr>) -> Result<String, StoreChoiceError> {
    // Set but empty is as if not set, as for most variables that programs look at.
    let variable = std::env::var_os(URL_VARIABLE).filter(|value| !value.is_empty());
    choose(option, variable, || std::env::var_os("XDG_STATE_HOME"), std::env::home_dir)
}

fn choose(
    option: Option<&OsStr>,
    variable: Option<OsString>,
    state_home: impl FnOnce() -> Option<OsString>,
    home: impl FnOnce() -> Option<PathBuf>,
) -> Result<String, StoreChoiceError> {
    let text = |place, url: OsString| {
        url.into_string().map_err(|url| StoreChoiceError::NotUtf8 {
            place,
            url: url.to_string_lossy().into_owned(),
        })
    };
    if let Some(url) = option {
        if url.is_empty() {
            return Err(StoreChoiceError::Empty);
        }
        return text("the value of --store", url.to_owned());
    }
    if let Some(url) = variable {
        return text("the value of LOCKWARDEN_URL", url);
    }
    // The specification of XDG_STATE_HOME says that a relative one is to be ignored.
    let state = state_home().map(PathBuf::from).filter(|path| path.is_absolute());
    let from_home = || {
        // The standard library asks the user database where HOME is not set.
        let home = home().filter(|home| home.is_absolute());
        home.map(|home| home.join(".local/state"))
    };
    let state = state.or_else(from_home).ok_or(StoreChoiceError::NoHome)?;
    // The form `file:DIR` takes the directory as it stands.
    let dir = text("the path of the user's state directory", state.join("lockwarden").into())?;
    Ok(format!("file:{dir}"))
}

/// The same place for a process that works in another directory: the command may change its own.
pub(crate) fn absolute(url: String) -> String {
    match url.strip_prefix("file:") {
        Some(path) if !path.is_empty() && !path.starts_with('/') => {
            let path = std::path::absolute(path)
                .ok()
                .and_then(|it| it.into_os_string().into_string().ok());
            path.map_or(url, |path| format!("file:{path}"))
        }
        _ => url,
    }
}

/// A lock's name from the command line.
pub(crate) fn name(given: &OsStr) -> Result<Name, Failure> {
    Ok(Name::from_bytes(given.as_bytes()).map_err(Error::from)?)
}

/// A holder's token from the command line, as `show` prints it: of another kind of client or of a hold that cools it may
/// begin in a way that no new one may.
pub(crate) fn token(given: &OsStr) -> Result<Token, Failure> {
    match given.as_bytes() {
        b"" => Ok(Token::new(b"").map_err(Error::from)?),
        bytes => Ok(Token::found(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    fn choice(
        option: Option<&str>,
        variable: Option<&str>,
        state_home: Option<&str>,
        home: Option<&str>,
    ) -> Result<String, StoreChoiceError> {
        choose(
            option.map(OsStr::new),
            variable.map(OsString::from),
            || state_home.map(OsString::from),
            || home.map(PathBuf::from),
        )
    }

    #[test]
    fn the_option_comes_before_the_variable_before_the_default() {
        let (option, variable) = (Some("redis://a"), Some("redis://b"));
        assert_eq!(choice(option, variable, Some("/s"), Some("/h")).unwrap(), "redis://a");
        assert_eq!(choice(None, variable, Some("/s"), Some("/h")).unwrap(), "redis://b");
        assert_eq!(choice(None, None, Some("/s"), Some("/h")).unwrap(), "file:/s/lockwarden");
        let home = "file:/h/.local/state/lockwarden";
        assert_eq!(choice(None, None, None, Some("/h")).unwrap(), home);
        assert_eq!(choice(None, None, Some("relative"), Some("/h")).unwrap(), home);
        assert_eq!(choice(None, None, Some(""), Some("/h")).unwrap(), home);
    }

    #[test]
    fn without_any_home_the_error_names_the_option() {
        let error = choice(None, None, None, None).unwrap_err();
        assert_eq!(error, StoreChoiceError::NoHome);
        assert!(error.to_string().contains("--store"));
        assert_eq!(choice(Some(""), None, None, None), Err(StoreChoiceError::Empty));
    }

    #[test]
    fn what_is_no_text_is_refused() {
        let not_text = OsString::from_vec(b"/\xff".to_vec());
        let refused = choose(None, None, || Some(not_text.clone()), || None);
        assert!(matches!(refused, Err(StoreChoiceError::NotUtf8 { .. })));
        let refused = choose(Some(&not_text), None, || None, || None);
        assert!(matches!(refused, Err(StoreChoiceError::NotUtf8 { .. })));
    }

    #[test]
    fn the_command_gets_an_absolute_place() {
        let here = std::env::current_dir().unwrap();
        let url = absolute("file:locks".into());
        assert_eq!(url, format!("file:{}", here.join("locks").display()));
        for same in ["file:/locks", "file:///locks", "redis://a", "memory:", "file:"] {
            assert_eq!(absolute(same.into()), same);
        }
    }
}

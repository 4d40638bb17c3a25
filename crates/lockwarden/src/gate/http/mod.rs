//! The gate of an HTTP service: a layer of tower that compares the fence before the handler runs.
//!
//! A request brings its fence in the header [`FENCE`] (`lockwarden-fence: 1764470000000000`), and the
//! lock's name, percent-encoded, in [`NAME`] (`lockwarden-name: nightly`).
//!
//! | answer | when |
//! |---|---|
//! | the handler's | the fence is not older than the newest of its name |
//! | 412 Precondition Failed | it is stale; the newest is in the header [`NEWEST`] and in the text |
//! | 428 Precondition Required | a header is missing |
//! | 400 Bad Request | a header is malformed |
//! | 503 Service Unavailable | the gate cannot answer; the handler has not run |
//!
//! ```
//! use lockwarden::gate::http::{GateLayer, Memory};
//!
//! let layer = GateLayer::new(Memory::new()).name("orders");
//! // axum: Router::new().route("/orders", put(handler)).layer(layer)
//! # let _ = layer;
//! ```
//!
//! Use it for the routes that write. It believes what the headers say, so it stands behind whatever
//! tells friend from foe: a forged fence keeps the honest out. Several servers of one resource need one
//! [`Gate`] that all of them ask, or better, a gate at what they write to: [`super::sql`].

mod memory;

pub use memory::{Memory, Pass};

use super::{Error, Stale, valid};
use ::http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header::CONTENT_TYPE};
use lockwarden_core::Name;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode, utf8_percent_encode};
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tower_layer::Layer;
use tower_service::Service;

/// The request's header with the fence: decimal digits.
pub const FENCE: &str = "lockwarden-fence";
/// The request's header with the lock's name: UTF-8, percent-encoded.
pub const NAME: &str = "lockwarden-name";
/// The answer's header with the newest fence: what to give to `fence_floor`.
pub const NEWEST: &str = "lockwarden-newest";

/// Remembers the newest fence of each name.
pub trait Gate: Send + Sync {
    /// Kept until the handler has answered.
    type Pass: Send;

    /// Compares the fence, and keeps it if it is the newest. A newer fence must wait until the passes
    /// of older ones are dropped: else an older request that is still in its handler writes last.
    ///
    /// # Errors
    /// [`Error::Stale`] is answered with 412, [`Error::Invalid`] with 400, all else with 503.
    fn pass(
        &self,
        name: &str,
        fence: u64,
    ) -> impl Future<Output = Result<Self::Pass, Error>> + Send;
}

/// What the handler finds in the extensions of a request that was let through: to write it beside its
/// data, say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// The lock's name.
    pub name: Arc<str>,
    /// Its fence.
    pub fence: u64,
}

/// The value of the header [`NAME`] for a lock's name.
#[must_use]
pub fn encode_name(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}

/// Puts a gate before a service.
#[derive(Debug)]
pub struct GateLayer<G> {
    gate: Arc<G>,
    rule: Arc<Rule>,
}

/// What is asked of a request.
#[derive(Clone, Debug, Default)]
struct Rule {
    name: Option<Arc<str>>,
    is_optional: bool,
}

impl<G> GateLayer<G> {
    /// Every request must bring name and fence.
    pub fn new(gate: G) -> GateLayer<G> {
        GateLayer { gate: Arc::new(gate), rule: Arc::default() }
    }

    /// What is behind this layer is protected by the lock of this name, whatever the request says; one
    /// that says another is answered with 400. Better than to let the sender choose.
    #[must_use]
    pub fn name(mut self, name: &str) -> GateLayer<G> {
        let is_optional = self.rule.is_optional;
        self.rule = Arc::new(Rule { name: Some(name.into()), is_optional });
        self
    }

    /// Requests without a fence pass unseen: for those that only read, or while old senders remain.
    #[must_use]
    pub fn optional(mut self) -> GateLayer<G> {
        self.rule = Arc::new(Rule { name: self.rule.name.clone(), is_optional: true });
        self
    }
}

impl<G> Clone for GateLayer<G> {
    fn clone(&self) -> GateLayer<G> {
        GateLayer { gate: self.gate.clone(), rule: self.rule.clone() }
    }
}

impl<S, G> Layer<S> for GateLayer<G> {
    type Service = GateService<S, G>;

    fn layer(&self, inner: S) -> GateService<S, G> {
        GateService { inner, gate: self.gate.clone(), rule: self.rule.clone() }
    }
}

/// A service behind a gate.
#[derive(Debug)]
pub struct GateService<S, G> {
    inner: S,
    gate: Arc<G>,
    rule: Arc<Rule>,
}

impl<S: Clone, G> Clone for GateService<S, G> {
    fn clone(&self) -> GateService<S, G> {
        let (inner, gate, rule) = (self.inner.clone(), self.gate.clone(), self.rule.clone());
        GateService { inner, gate, rule }
    }
}

impl<S, G, Body, Answer> Service<Request<Body>> for GateService<S, G>
where
    S: Service<Request<Body>, Response = Response<Answer>> + Clone + Send + 'static,
    S::Future: Send,
    G: Gate + 'static,
    Body: Send + 'static,
    Answer: From<String>,
{
    type Response = Response<Answer>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Answer>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        // The one that is ready goes with the request, a fresh one stays.
        let fresh = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, fresh);
        let (gate, rule) = (self.gate.clone(), self.rule.clone());
        Box::pin(async move {
            let asked = match rule.read(request.headers()) {
                Ok(Some(asked)) => asked,
                Ok(None) => return inner.call(request).await,
                Err(refusal) => return Ok(refusal.answer()),
            };
            let _pass = match gate.pass(&asked.name, asked.fence).await {
                Ok(pass) => pass,
                Err(error) => return Ok(Refusal::from(error).answer()),
            };
            request.extensions_mut().insert(asked);
            inner.call(request).await
        })
    }
}

impl Rule {
    /// Name and fence of a request; none: it has no fence and needs none.
    fn read(&self, headers: &HeaderMap) -> Result<Option<Passed>, Refusal> {
        let name = one(headers, NAME)?.map(decoded).transpose()?;
        let Some(fence) = one(headers, FENCE)? else {
            return if self.is_optional { Ok(None) } else { Err(Refusal::missing(FENCE)) };
        };
        let fence = number(fence)?;
        let name = match (&self.name, name) {
            (Some(ours), Some(name)) if **ours != *name => {
                let why = format!("{NAME}: what is here is protected by the lock {ours}");
                return Err(Refusal::malformed(why));
            }
            (Some(ours), _) => ours.clone(),
            (None, Some(name)) => name.into(),
            (None, None) => return Err(Refusal::missing(NAME)),
        };
        Ok(Some(Passed { name, fence }))
    }
}

fn one<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a HeaderValue>, Refusal> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        _ => Err(Refusal::malformed(format!("{name} is there more than once"))),
    }
}

fn decoded(value: &HeaderValue) -> Result<String, Refusal> {
    let text = percent_decode(value.as_bytes()).decode_utf8();
    let text = text.map_err(|_| Refusal::malformed(format!("{NAME} is no UTF-8")))?;
    let name = Name::new(&text).map_err(|error| Refusal::malformed(format!("{NAME}: {error}")))?;
    Ok(name.as_str().to_owned())
}

fn number(value: &HeaderValue) -> Result<u64, Refusal> {
    let text = value.to_str().unwrap_or_default();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let fence = text.parse().ok().filter(|_| is_number);
    let fence = fence.ok_or_else(|| Refusal::malformed(format!("{FENCE} is no number")))?;
    valid(fence)?;
    Ok(fence)
}

/// An answer in the handler's place.
struct Refusal {
    status: StatusCode,
    text: String,
    newest: Option<u64>,
}

impl Refusal {
    fn missing(header: &str) -> Refusal {
        let text = format!("the header {header} is missing: this needs the lock's name and fence");
        Refusal { status: StatusCode::PRECONDITION_REQUIRED, text, newest: None }
    }

    fn malformed(text: String) -> Refusal {
        Refusal { status: StatusCode::BAD_REQUEST, text, newest: None }
    }

    fn answer<Answer: From<String>>(self) -> Response<Answer> {
        let mut answer = Response::new(Answer::from(self.text + "\n"));
        *answer.status_mut() = self.status;
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        if let Some(newest) = self.newest {
            headers.insert(NEWEST, newest.into());
        }
        answer
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        let (status, newest) = match &error {
            Error::Stale(Stale { newest, .. }) => (StatusCode::PRECONDITION_FAILED, Some(*newest)),
            Error::Invalid { .. } => (StatusCode::BAD_REQUEST, None),
            Error::Unfit { .. } | Error::Unavailable { .. } => {
                (StatusCode::SERVICE_UNAVAILABLE, None)
            }
        };
        Refusal { status, text: error.to_string(), newest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(rule: &Rule, headers: &[(&'static str, &[u8])]) -> Result<Option<(String, u64)>, u16> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        match rule.read(&map) {
            Ok(passed) => Ok(passed.map(|it| (it.name.to_string(), it.fence))),
            Err(refusal) => Err(refusal.status.as_u16()),
        }
    }

    #[test]
    fn headers_are_read_or_refused() {
        let any = Rule::default();
        let named = Rule { name: Some("ö".into()), is_optional: false };
        let optional = Rule { is_optional: true, ..named.clone() };
        let ok = |name: &str, fence| Ok(Some((name.to_owned(), fence)));
        assert_eq!(read(&any, &[(NAME, b"n%20m"), (FENCE, b"7")]), ok("n m", 7));
        assert_eq!(read(&any, &[(NAME, "ö".as_bytes()), (FENCE, b"7")]), ok("ö", 7));
        assert_eq!(read(&named, &[(FENCE, b"7")]), ok("ö", 7));
        assert_eq!(read(&named, &[(NAME, b"%C3%B6"), (FENCE, b"7")]), ok("ö", 7));
        assert_eq!(read(&named, &[(NAME, b"o"), (FENCE, b"7")]), Err(400));
        assert_eq!(read(&any, &[]), Err(428));
        assert_eq!(read(&any, &[(FENCE, b"7")]), Err(428));
        assert_eq!(read(&any, &[(NAME, b"n")]), Err(428));
        assert_eq!(read(&optional, &[]), Ok(None));
        for fence in
            ["", "0", "-1", "+7", "7.0", "1e3", "٧", "9007199254740992", "99999999999999999999"]
        {
            assert_eq!(read(&optional, &[(FENCE, fence.as_bytes())]), Err(400), "{fence}");
        }
        assert_eq!(read(&named, &[(FENCE, b"7"), (FENCE, b"7")]), Err(400));
        let long = "n".repeat(5_000);
        for name in [b"".as_slice(), b"%FF", b"lockwarden:x", long.as_bytes()] {
            assert_eq!(read(&any, &[(NAME, name), (FENCE, b"7")]), Err(400), "{name:?}");
        }
    }

    #[test]
    fn names_of_any_kind_travel() {
        for name in ["nightly", "a b", "100%", "line\nbreak", "ö/{x}", "%20"] {
            let value = encode_name(name);
            let headers = [(NAME, value.as_bytes()), (FENCE, b"7".as_slice())];
            assert_eq!(read(&Rule::default(), &headers), Ok(Some((name.to_owned(), 7))));
        }
    }
}

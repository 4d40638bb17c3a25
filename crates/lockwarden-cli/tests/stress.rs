//! `stress orders`: the styles side by side, several processes, chaos, the report, and bad input.
//!
//! Small by default; the sizes of the field report, with their bounds on time, with `LOCKWARDEN_TEST_LONG`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use lockwarden_testkit::{
    process::eventually,
    servers::{Server, ServerKind},
};
use rustix::process::Signal;
use serde_json::Value;
use std::{
    fs,
    io::Read,
    time::{Duration, Instant},
};
use support::{Ran, SOON, Site, Started, started, until};

/// More than any run of these tests may take.
const LONG: Duration = Duration::from_secs(300);

fn is_long() -> bool {
    std::env::var_os("LOCKWARDEN_TEST_LONG").is_some()
}

/// `stress orders ARGS`, to its end.
#[track_caller]
fn stress(site: &Site, args: &[&str]) -> Ran {
    let mut command = site.program(&["stress", "orders"]);
    command.args(args);
    end(started(command))
}

#[track_caller]
fn end(started: Started) -> Ran {
    let mut process = started.process;
    // A page may be more than a pipe takes.
    let mut stdout = process.child().stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stdout.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let status = process.wait_exit(LONG).expect("it ends");
    let mut stderr = String::new();
    process.child().stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    Ran { status, stdout: reader.join().unwrap(), stderr }
}

/// The same on a server of its own, with no store chosen.
#[track_caller]
fn stress_on_own_server(site: &Site, args: &[&str]) -> Ran {
    let mut command = support::program();
    command.current_dir(site.path("")).env("XDG_STATE_HOME", site.path("state"));
    command
        .args(["stress", "orders", "--redis-server"])
        .arg(ServerKind::any().program())
        .args(args);
    end(started(command))
}

fn redis(kind: ServerKind) -> (Server, Site) {
    let server = Server::start(kind);
    server.without_guard();
    let site = Site::with(&server.url());
    (server, site)
}

/// The entry of a style.
#[track_caller]
fn result<'a>(json: &'a Value, style: &str) -> &'a Value {
    let results = json["results"].as_array().unwrap();
    results.iter().find(|it| it["style"] == style).unwrap_or_else(|| panic!("{style}: {json}"))
}

fn number(result: &Value, field: &str) -> f64 {
    result[field].as_f64().unwrap_or_else(|| panic!("{field}: {result}"))
}

/// What every style of ours must come to, whatever happens on the way.
#[track_caller]
fn all_went_well(result: &Value) {
    assert_eq!(number(result, "success_rate"), 1.0, "{result}");
    assert_eq!(number(result, "violations"), 0.0, "{result}");
    assert!(number(result, "connections_per_process") <= 2.0, "{result}");
}

#[track_caller]
fn nothing_is_left(server: &Server) {
    let keys = server.cmd(&["KEYS", "*stress:*"]);
    assert!(keys.items().is_empty(), "{keys:?}");
}

/// How many locks the store has.
fn held(site: &Site) -> usize {
    let listed = end(started(site.program(&["ls", "--json"]))).json();
    listed["locks"].as_array().unwrap().len()
}

const STYLES: [&str; 4] = ["flawed", "backoff", "lockwarden", "lockwarden-nested"];

#[test]
fn all_styles_side_by_side_on_redis() {
    for kind in ServerKind::default_set() {
        let (server, site) = redis(kind);
        // 150 orders: 100 users, half of which have two.
        let ran = stress(&site, &["--orders", "150", "--work", "50ms", "--wait", "2s", "--json"]);
        let json = ran.json();
        assert_eq!(ran.stderr, "");
        assert_eq!((&json["scenario"], &json["locks"]), (&"orders".into(), &2.into()));
        assert_eq!((&json["order"], &json["seed"]), (&"sorted".into(), &1.into()));
        assert_eq!((&json["work_ms"], &json["wait_ms"]), (&50.0.into(), &2_000.0.into()));
        assert_eq!(json["left_out"].as_array().unwrap().len(), 0);
        let styles: Vec<&Value> =
            json["results"].as_array().unwrap().iter().map(|it| &it["style"]).collect();
        assert_eq!(styles, STYLES);
        for result in json["results"].as_array().unwrap() {
            assert_eq!((&result["orders"], &result["locks"]), (&150.into(), &2.into()));
            assert_eq!(number(result, "best_s"), 0.1);
            let ratio = number(result, "total_s") / number(result, "best_s");
            assert!((ratio - number(result, "ratio")).abs() < 0.02, "{result}");
            let [p50, p99, max] = ["p50_ms", "p99_ms", "max_ms"].map(|it| number(result, it));
            assert!(p50 <= p99 && p99 <= max && number(result, "mean_ms") <= max, "{result}");
            assert_eq!(number(result, "deadlocks"), 0.0, "{result}");
            assert_eq!(number(result, "violations"), 0.0, "{result}");
            assert!(number(result, "commands") >= 600.0, "{result}");
        }
        for ours in &STYLES[2..] {
            let result = result(&json, ours);
            all_went_well(result);
            assert_eq!(number(result, "keys_left"), 0.0, "{result}");
            assert!(number(result, "connections") >= 1.0, "{result}");
        }
        // It never releases: of each user the first order only, and all keys stay.
        let flawed = result(&json, "flawed");
        assert_eq!((&flawed["done"], &flawed["gave_up"]), (&100.into(), &50.into()));
        assert_eq!(number(flawed, "keys_left"), 250.0);
        assert!(number(flawed, "connections") > 20.0, "{flawed}");
        let backoff = result(&json, "backoff");
        assert_eq!((number(backoff, "success_rate"), number(backoff, "keys_left")), (1.0, 0.0));
        nothing_is_left(&server);
    }
}

/// What the table shows, and that it is on stdout.
#[test]
fn the_table() {
    let site = Site::new();
    let args = ["--orders", "20", "--work", "20ms", "--style", "lockwarden-nested,lockwarden"];
    let ran = stress(&site, &args);
    assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""));
    let text = ran.text();
    let mut lines = text.lines();
    let head = "20 orders, two locks each (sorted), 20ms of work, wait 10s, 1 process, seed 1";
    assert_eq!(lines.next(), Some(head));
    // In the order in which they were asked for, and ran.
    let styles = lines.nth(1).unwrap();
    let words: Vec<&str> = styles.split_whitespace().collect();
    assert_eq!(words, ["lockwarden-nested", "lockwarden"], "{text}");
    for row in ["success", "total time", "response, p99", "throughput", "keys left", "deadlocks"] {
        assert!(text.lines().any(|line| line.starts_with(row)), "{row}: {text}");
    }
    assert!(text.contains("100.0 %"), "{text}");
}

/// The embedded store has no server: two styles are left out, and it says so.
#[test]
fn the_embedded_store_leaves_out_what_needs_redis() {
    let site = Site::new();
    let ran = stress(&site, &["--orders", "60", "--work", "50ms", "--json"]);
    let json = ran.json();
    for style in ["flawed", "backoff"] {
        let words = format!("{style} is left out: it needs Redis");
        assert!(ran.stderr.contains(&words), "{ran:?}");
        let left_out = json["left_out"].as_array().unwrap();
        assert!(left_out.iter().any(|it| it["style"] == style), "{json}");
    }
    assert_eq!(json["results"].as_array().unwrap().len(), 2);
    for result in json["results"].as_array().unwrap() {
        all_went_well(result);
        let none = ["connections", "commands", "keys_left"].map(|it| number(result, it));
        assert_eq!(none, [0.0; 3], "{result}");
    }
    assert_eq!(held(&site), 0);
}

/// Locks of the store that bear the same names are other locks.
#[test]
fn nobody_elses_locks_are_touched() {
    let (_server, on_redis) = redis(ServerKind::any());
    for site in [Site::new(), on_redis] {
        let script = format!("echo > ready; {}", until("go"));
        let holder = site.running(&["user:user_1", "--label", "theirs"], &script);
        let ran = stress(&site, &["--orders", "10", "--work", "10ms", "--style", "lockwarden"]);
        assert_eq!(ran.code(), 0, "{ran:?}");
        assert_eq!(site.show("user:user_1")["holder"]["label"], "theirs");
        site.write("go");
        assert_eq!(holder.end().code(), 0);
    }
}

/// Four locks, one inside the other in random order, from several processes: every deadlock is told, and everyone
/// gets through; in sorted order there is none.
#[test]
fn four_locks_in_random_order() {
    let (server, on_redis) = redis(ServerKind::any());
    for site in [on_redis, Site::new()] {
        let base = ["--locks", "four", "--orders", "200", "--work", "5ms", "--wait", "60s"];
        let style = ["--style", "lockwarden-nested", "--processes", "3", "--json"];
        let run = |order: &str| {
            let args = [&base[..], &style, &["--order", order]].concat();
            stress(&site, &args).json()["results"][0].clone()
        };
        let random = run("random");
        all_went_well(&random);
        assert_eq!((&random["locks"], number(&random, "best_s")), (&4.into(), 0.05));
        assert!(number(&random, "deadlocks") > 0.0, "{random}");
        // By the answer itself. What only a recheck finds is found after a second at the earliest.
        assert!(number(&random, "deadlock_told_max_ms") < 1_000.0, "{random}");
        let sorted = run("sorted");
        all_went_well(&sorted);
        assert_eq!(
            (number(&sorted, "deadlocks"), &sorted["deadlock_told_max_ms"]),
            (0.0, &Value::Null)
        );
    }
    nothing_is_left(&server);
}

/// The others finish what the killed ones had begun.
#[test]
fn processes_are_killed() {
    let (server, on_redis) = redis(ServerKind::any());
    for site in [on_redis, Site::new()] {
        let args = ["--orders", "120", "--work", "200ms", "--processes", "4", "--kill", "50"];
        let style = ["--style", "lockwarden,lockwarden-nested", "--wait", "60s", "--json"];
        let json = stress(&site, &[&args[..], &style].concat()).json();
        for result in json["results"].as_array().unwrap() {
            all_went_well(result);
            assert_eq!((&result["processes"], &result["killed"]), (&4.into(), &2.into()));
            // All of them had work to do.
            assert!(number(result, "redone") >= 30.0, "{result}");
        }
    }
    nothing_is_left(&server);
}

/// One that somebody else killed, too; and if all are gone, that is the end.
#[test]
fn a_process_vanishes() {
    let site = Site::new();
    for (victims, code) in [(1, 0), (2, 71)] {
        let mut command = site.program(&["stress", "orders", "--orders", "20", "--work", "3s"]);
        command.args(["--style", "lockwarden", "--processes", "2"]);
        let run = started(command);
        eventually(SOON, || held(&site) == 40);
        let pid = run.process.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        for child in children.split_whitespace().take(victims) {
            let child = rustix::process::Pid::from_raw(child.parse().unwrap()).unwrap();
            rustix::process::kill_process(child, Signal::KILL).unwrap();
        }
        let ran = end(run);
        assert_eq!(ran.code(), code, "{ran:?}");
        let words = ["processes that ended by themselves: 1", "20 orders are not finished"];
        assert!(ran.stderr.contains(words[victims - 1]), "{ran:?}");
        assert_eq!(ran.text().contains("100.0 %"), victims == 1, "{ran:?}");
        assert_eq!(held(&site), 0);
    }
}

/// On a server of the run's own, killed and started again in the middle.
#[test]
fn redis_is_restarted() {
    let site = Site::new();
    let args = ["--restart-redis", "--orders", "120", "--work", "300ms", "--processes", "3"];
    let more = ["--kill", "34", "--wait", "60s", "--style", "backoff,lockwarden", "--json"];
    let ran = stress_on_own_server(&site, &[&args[..], &more].concat());
    let json = ran.json();
    assert!(ran.stderr.contains("runs on a Redis server of its own"), "{ran:?}");
    let lockwarden = result(&json, "lockwarden");
    all_went_well(lockwarden);
    for result in json["results"].as_array().unwrap() {
        assert_eq!((&result["restarts"], &result["killed"]), (&1.into(), &1.into()), "{result}");
    }
    // Gone with its directory.
    let socket = json["store"].as_str().unwrap().trim_start_matches("unix://").to_owned();
    assert!(socket.ends_with("/redis.sock"), "{socket}");
    assert!(!fs::exists(socket.trim_end_matches("/redis.sock")).unwrap());
    // And the store that would else have been chosen was not made.
    assert!(!site.has("state"));
}

#[test]
fn a_server_of_the_runs_own() {
    let site = Site::new();
    let args = ["--orders", "30", "--work", "20ms", "--style", "flawed,lockwarden", "--json"];
    let json = stress_on_own_server(&site, &args).json();
    all_went_well(result(&json, "lockwarden"));
    assert_eq!(number(result(&json, "flawed"), "keys_left"), 60.0);
}

/// A signal ends it, and nothing stays behind.
#[test]
fn an_interrupted_run_tidies_up() {
    let (server, on_redis) = redis(ServerKind::any());
    for (site, style) in
        [(&on_redis, "flawed"), (&on_redis, "lockwarden-nested"), (&Site::new(), "lockwarden")]
    {
        for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
            let mut command =
                site.program(&["stress", "orders", "--orders", "300", "--work", "20s"]);
            command.args(["--style", style, "--wait", "60s", "--processes", "2"]);
            let run = started(command);
            // `flawed` leaves keys of another kind.
            eventually(SOON, || held(site) > 100 || server.cmd(&["DBSIZE"]).int() > Some(300));
            let began = Instant::now();
            run.signal(signal);
            let ran = end(run);
            assert_eq!(ran.code(), code, "{ran:?}");
            assert!(ran.stderr.contains("interrupted; removed"), "{ran:?}");
            assert!(ran.stdout.is_empty(), "{ran:?}");
            assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
            nothing_is_left(&server);
            assert_eq!(held(site), 0);
        }
    }
}

/// Its processes end with it, however it ends, and release what they have.
#[test]
fn a_killed_run_leaves_no_process() {
    let site = Site::new();
    let mut command = site.program(&["stress", "orders", "--orders", "20", "--work", "1m"]);
    command.args(["--style", "lockwarden"]);
    let mut run = started(command);
    eventually(SOON, || held(&site) == 40);
    run.process.kill9();
    eventually(SOON, || held(&site) == 0);
}

#[test]
fn the_report_is_one_page_that_loads_nothing() {
    let (_server, on_redis) = redis(ServerKind::any());
    for (site, styles) in [(on_redis, 4), (Site::new(), 2)] {
        fs::write(site.path("r.html"), "x".repeat(1_000_000)).unwrap();
        let ran = stress(&site, &["--orders", "40", "--work", "20ms", "--report", "r.html"]);
        assert_eq!(ran.code(), 0, "{ran:?}");
        let page = site.read("r.html");
        assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
        assert!(page.len() < 500_000, "{}", page.len());
        // The name of SVG's namespace is no address that anyone asks.
        let rest = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        for load in
            ["http:", "https:", "//", "src=", "href=", "url(", "@import", "<script", "<link"]
        {
            let rest = rest.replace(&site.url, "");
            assert!(!rest.contains(load), "{load}");
        }
        assert_eq!(page.matches("<svg ").count(), 4);
        assert_eq!(page.matches("<svg ").count(), page.matches("</svg>").count());
        for style in STYLES {
            let shown = page.contains(&format!("<th scope=\"col\">{style}</th>"));
            assert_eq!(shown, styles == 4 || style.starts_with("lockwarden"), "{style}");
        }
        assert_eq!(page.contains("is left out: it needs Redis"), styles == 2);
        for title in ["Throughput", "Queue", "Connections", "How long orders waited"] {
            assert!(page.contains(title), "{title}");
        }
    }
}

/// Whatever a store is called, it is text.
#[test]
fn the_report_escapes() {
    let site = Site::new();
    let dir = site.path("<b>&\"'");
    let odd = Site::with(&format!("file:{}", dir.display()));
    let ran = stress(&odd, &["--orders", "4", "--work", "5ms", "--report", "r.html"]);
    assert_eq!(ran.code(), 0, "{ran:?}");
    let page = odd.read("r.html");
    assert!(page.contains("&lt;b&gt;&amp;&quot;&#39;"), "{page}");
    assert!(!page.contains("<b>&\""));
}

#[test]
fn bad_input() {
    let (server, on_redis) = redis(ServerKind::any());
    let embedded = Site::new();
    let keys = server.cmd(&["DBSIZE"]).int();
    let url = on_redis.url.clone();
    for (site, args, code, words) in [
        (&embedded, &["--orders", "0"][..], 64, "0 is not in 1..=100000"),
        (&embedded, &["--orders", "-1"], 64, "-1 is not in 1..=100000"),
        (&embedded, &["--orders", "100001"], 64, "not in 1..=100000"),
        (&embedded, &["--orders", "many"], 64, "invalid digit"),
        (&embedded, &["--locks", "three"], 64, "possible values: two, four"),
        (&embedded, &["--order", "reverse"], 64, "possible values: sorted, random"),
        (&embedded, &["--style", "clever"], 64, "flawed, backoff, lockwarden, lockwarden-nested"),
        (&embedded, &["--style", "lockwarden,clever"], 64, "possible values: flawed, backoff"),
        (&embedded, &["--style", ""], 64, "possible values"),
        (&embedded, &["--style", "flawed"], 64, "the style flawed needs Redis, and the store is "),
        (&embedded, &["--style", "backoff,flawed"], 64, "the style backoff needs Redis"),
        (&embedded, &["--work", "0s"], 64, "work of 0 ms is out of range: 1 ms to 3600000 ms"),
        (&embedded, &["--work", "61m"], 64, "work of 3660000 ms is out of range"),
        (&embedded, &["--work", "-1s"], 64, "is negative"),
        (&embedded, &["--work", "500"], 64, "a number with a unit"),
        (&embedded, &["--wait", "0s"], 64, "wait of 0 ms is out of range: 1 ms to 3600000 ms"),
        (&embedded, &["--wait", "2h"], 64, "out of range"),
        (&embedded, &["--processes", "0"], 64, "0 is not in 1..=256"),
        (&embedded, &["--processes", "257"], 64, "not in 1..=256"),
        (
            &embedded,
            &["--processes", "3", "--orders", "2"],
            64,
            "3 processes are more than the 2 orders",
        ),
        (&embedded, &["--kill", "101", "--processes", "2"], 64, "101 is not in 0..=100"),
        (&embedded, &["--kill", "-1"], 64, "-1 is not in 0..=100"),
        (&embedded, &["--kill", "100", "--processes", "2"], 64, "leaves no survivors"),
        (&embedded, &["--kill", "10"], 64, "--kill 10 needs survivors: give --processes 2 or more"),
        (&embedded, &["--restart-redis"], 64, "cannot restart "),
        (&on_redis, &["--restart-redis"], 64, &format!("cannot restart {url}")),
        (&on_redis, &["--redis-server"], 64, "leave one out"),
        (&embedded, &["--seed", "-1"], 64, "invalid digit"),
        (&embedded, &["--seed", "18446744073709551616"], 64, "too large"),
        (&embedded, &["--report", "no/such/r.html"], 71, "cannot write the report no/such/r.html"),
        (&embedded, &["--report", "."], 71, "cannot write the report .: "),
        (&embedded, &["--nonsense"], 64, "--nonsense"),
        (&embedded, &["nonsense"], 64, "nonsense"),
    ] {
        let began = Instant::now();
        let ran = stress(site, args);
        assert_eq!(ran.code(), code, "{args:?}: {ran:?}");
        assert!(ran.stderr.contains(words), "{args:?}: {words:?} is not in {ran:?}");
        assert!(ran.stdout.is_empty(), "{ran:?}");
        // Before the run, which takes seconds.
        assert!(began.elapsed() < Duration::from_secs(2), "{args:?}");
    }
    assert_eq!(server.cmd(&["DBSIZE"]).int(), keys);
    assert!(!embedded.has("store"));
    assert_eq!(embedded.ran(&["stress"]).code(), 64);
    assert_eq!(embedded.ran(&["stress", "users"]).code(), 64);
}

#[test]
fn stores_that_cannot_be_used() {
    for (url, code, words) in [
        ("memory:", 64, "inside one process"),
        ("gopher://x", 64, "redis://HOST"),
        ("redis://127.0.0.1:1", 69, "unavailable"),
    ] {
        let ran = stress(&Site::with(url), &["--orders", "2"]);
        assert_eq!(ran.code(), code, "{url}: {ran:?}");
        assert!(ran.stderr.contains(words), "{url}: {ran:?}");
    }
    let site = Site::new();
    let mut command = support::program();
    command.args(["stress", "orders", "--redis-server", "/no/such/program"]);
    command.current_dir(site.path("")).env("XDG_STATE_HOME", site.path("state"));
    let ran = support::ran(command);
    assert_eq!(ran.code(), 71, "{ran:?}");
    assert!(ran.stderr.contains("cannot start the Redis server /no/such/program"), "{ran:?}");
    // A program that is no server.
    let mut command = support::program();
    command.args(["stress", "orders", "--redis-server", "false"]);
    let ran = support::ran(command);
    assert_eq!(ran.code(), 71, "{ran:?}");
    assert!(ran.stderr.contains("does not come up"), "{ran:?}");
}

/// With a login, and without the password in any output or argument.
#[test]
fn a_password_is_not_shown() {
    let server = Server::builder(ServerKind::any()).password("s3cret").start();
    server.without_guard();
    let site = Site::with(&server.url());
    let ran = stress(&site, &["--orders", "30", "--work", "100ms", "--json", "--report", "r.html"]);
    assert_eq!(ran.json()["results"].as_array().unwrap().len(), 4);
    assert!(!ran.text().contains("s3cret") && !ran.stderr.contains("s3cret"), "{ran:?}");
    assert!(!site.read("r.html").contains("s3cret"));
}

/// The help, the man page and the completions.
#[test]
fn help_has_examples() {
    let site = Site::new();
    let help = site.ran(&["stress", "orders", "--help"]).text();
    for part in
        ["Examples:", "--restart-redis", "lockwarden stress orders --redis-server", "PERCENT"]
    {
        assert!(help.contains(part), "{part}");
    }
    let stress = site.ran(&["stress", "--help"]).text();
    assert!(stress.contains("orders") && !stress.contains("worker"), "{stress}");
    let page = site.ran(&["man", "stress", "orders"]).text();
    assert!(
        page.contains("lockwarden stress orders") && page.contains("restart\\-redis"),
        "{page}"
    );
    assert_eq!(site.ran(&["man", "stress", "users"]).code(), 64);
    assert!(site.ran(&["completions", "bash"]).text().contains("restart-redis"));
}

/// The field report's load test, at its size, with its bounds.
#[test]
fn the_field_report() {
    if !is_long() {
        return;
    }
    for (orders, best_s) in [("500", 2.5), ("1000", 5.0)] {
        let (server, on_redis) = redis(ServerKind::any());
        for site in [on_redis, Site::new()] {
            let json = stress(&site, &["--orders", orders, "--json"]).json();
            for style in ["lockwarden", "lockwarden-nested"] {
                let result = result(&json, style);
                println!("{result}");
                all_went_well(result);
                assert_eq!(number(result, "best_s"), best_s);
                assert_eq!(number(result, "keys_left"), 0.0, "{result}");
            }
            let lockwarden = result(&json, "lockwarden");
            // Five or ten orders one after the other, each of which costs the unoptimised program milliseconds more.
            let most = if cfg!(debug_assertions) { 1.25 } else { 1.03 };
            assert!(number(lockwarden, "ratio") <= most, "{lockwarden}");
        }
        nothing_is_left(&server);
    }
}

/// Four locks each, at the same size.
#[test]
fn the_field_report_with_four_locks() {
    if !is_long() {
        return;
    }
    let (server, on_redis) = redis(ServerKind::any());
    for site in [on_redis, Site::new()] {
        let args = ["--locks", "four", "--orders", "1000", "--wait", "60s", "--json"];
        let all = stress(&site, &[&args[..], &["--style", "lockwarden"]].concat()).json();
        let result = &all["results"][0];
        println!("{result}");
        all_went_well(result);
        assert_eq!(number(result, "best_s"), 5.0);
        assert!(number(result, "max_ms") <= number(result, "total_s") * 1_000.0, "{result}");
    }
    nothing_is_left(&server);
}

/// A tenth of the processes killed, and Redis restarted in the middle: the others finish everything.
#[test]
fn the_field_report_with_chaos() {
    if !is_long() {
        return;
    }
    let args =
        ["--orders", "500", "--processes", "10", "--kill", "10", "--restart-redis", "--json"];
    let more = ["--wait", "60s", "--style", "lockwarden,lockwarden-nested"];
    let json = stress_on_own_server(&Site::new(), &[&args[..], &more].concat()).json();
    for result in json["results"].as_array().unwrap() {
        println!("{result}");
        all_went_well(result);
        assert_eq!((&result["killed"], &result["restarts"]), (&1.into(), &1.into()));
    }
}

/// A thousand orders of four locks, one inside the other in random order.
#[test]
fn the_field_report_in_random_order() {
    if !is_long() {
        return;
    }
    let (server, site) = redis(ServerKind::any());
    let args = ["--orders", "1000", "--locks", "four", "--order", "random", "--processes", "4"];
    let more = ["--work", "50ms", "--wait", "10m", "--style", "lockwarden-nested", "--json"];
    let json = stress(&site, &[&args[..], &more].concat()).json();
    let result = &json["results"][0];
    println!("{result}");
    all_went_well(result);
    assert!(number(result, "deadlocks") > 0.0, "{result}");
    assert!(number(result, "deadlock_told_max_ms") < 1_000.0, "{result}");
    nothing_is_left(&server);
}

/// A recorder that cannot fail proves nothing: keys that expire while their holders work.
#[test]
fn violations_of_others_are_seen() {
    if !is_long() {
        return;
    }
    let (server, site) = redis(ServerKind::any());
    // The first and the last order have one user.
    let args =
        ["--orders", "101", "--work", "12s", "--wait", "20s", "--style", "backoff", "--json"];
    let json = stress(&site, &args).json();
    let backoff = result(&json, "backoff");
    assert_eq!((number(backoff, "success_rate"), number(backoff, "violations")), (1.0, 1.0));
    // All releases come too late.
    assert_eq!(number(backoff, "lost"), 202.0, "{backoff}");
    nothing_is_left(&server);
}

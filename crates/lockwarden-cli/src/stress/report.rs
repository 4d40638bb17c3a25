//! The report: one page that loads nothing from anywhere, readable in the light and in the dark.

use super::{
    StressError,
    plots::{self, GRID, INK},
    run::Outcome,
    styles::Style,
    table,
};
use crate::{failure::Failure, wire::StressJson};
use plotters::prelude::RGBColor;
use std::{
    fmt::Write,
    fs::File,
    io::{self, Seek},
    path::{Path, PathBuf},
};

/// The file of the report.
pub(super) struct Report {
    path: PathBuf,
    file: File,
    /// There was none before: if it is not written, none shall be left.
    is_new: bool,
    is_written: bool,
}

impl Report {
    /// Opens it for writing; what is in it stays until [`Report::write`].
    pub(super) fn open(path: &Path) -> Result<Report, Failure> {
        let is_new = !path.exists();
        let file = File::options().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|source| StressError::Report { path: path.to_owned(), source })?;
        Ok(Report { path: path.to_owned(), file, is_new, is_written: false })
    }

    /// Writes it, in place of what was there.
    pub(super) fn write(mut self, page: &str) -> Result<(), Failure> {
        let written = self.replace(page.as_bytes());
        self.is_written = written.is_ok();
        Ok(written.map_err(|source| StressError::Report { path: self.path.clone(), source })?)
    }

    fn replace(&mut self, page: &[u8]) -> io::Result<()> {
        // A pipe or a terminal has no length.
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
            self.file.rewind()?;
        }
        io::Write::write_all(&mut self.file, page)
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if self.is_new && !self.is_written {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The page.
pub(super) fn page(words: &str, run: &StressJson, outcomes: &[Outcome]) -> Result<String, Failure> {
    let mut body =
        format!("<p>{}; store <code>{}</code></p>\n", escaped(words), escaped(&run.store));
    for left_out in &run.left_out {
        let (style, reason) = (escaped(left_out.style), escaped(left_out.reason));
        body += &format!("<p><b>{style}</b> is left out: {reason}.</p>\n");
    }
    body += &figures(run);
    let legend = legend(run);
    for plot in plots::all(outcomes)? {
        let (title, note) = (escaped(plot.title), escaped(plot.note));
        // Writing to a text cannot fail.
        let _ = write!(
            body,
            "<h2>{title}</h2>\n{legend}<figure role=\"img\" aria-label=\"{title}\">\n{}</figure>\n<p>{note}</p>\n",
            plot.svg
        );
    }
    let version = env!("CARGO_PKG_VERSION");
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>lockwarden stress {scenario}</title>\n<style>\n{LOOKS}{colours}</style>\n</head>\n<body>\n\
         <h1>lockwarden stress {scenario}</h1>\n{body}<footer>lockwarden {version}</footer>\n</body>\n</html>\n",
        scenario = escaped(run.scenario),
        colours = colours(),
    ))
}

/// The table of the figures.
fn figures(run: &StressJson) -> String {
    let mut html = String::from("<div class=\"wide\"><table>\n<thead><tr><td></td>");
    for result in &run.results {
        html += &format!("<th scope=\"col\">{}</th>", escaped(result.style));
    }
    html += "</tr></thead>\n<tbody>\n";
    for row in table::rows(&run.results) {
        html += &format!("<tr><th scope=\"row\">{}</th>", escaped(row.figure));
        for value in row.values {
            html += &format!("<td>{}</td>", escaped(&value));
        }
        html += "</tr>\n";
    }
    html + "</tbody>\n</table></div>\n"
}

fn legend(run: &StressJson) -> String {
    let name = |style: &str| format!("<span class=\"{style}\">{style}</span>");
    let names: Vec<String> = run.results.iter().map(|it| name(&escaped(it.style))).collect();
    format!("<p class=\"legend\">{}</p>\n", names.join(" "))
}

/// What the names of colours in the plots look like.
fn colours() -> String {
    let name = |RGBColor(r, g, b): RGBColor| format!("#{r:02X}{g:02X}{b:02X}");
    let mut css = format!(
        "text[fill=\"{0}\"]{{fill:var(--ink)}}\n[stroke=\"{0}\"]{{stroke:var(--ink)}}\n\
         [stroke=\"{1}\"]{{stroke:var(--grid)}}\n",
        name(INK),
        name(GRID)
    );
    for style in Style::ALL {
        let (colour, style) = (name(plots::colour(style)), style.name());
        css += &format!(
            "[stroke=\"{colour}\"]{{stroke:var(--{style})}}\n.{style}{{color:var(--{style})}}\n"
        );
    }
    // Where the two lie on each other both are seen.
    let nested = Style::LockwardenNested;
    css += &format!("[stroke=\"{}\"]{{stroke-dasharray:6 4}}\n", name(plots::colour(nested)));
    css + &format!(".legend .{}::before{{border-top-style:dashed}}\n", nested.name())
}

/// As text of a page, or inside of an attribute's quotes.
fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => html += "&amp;",
            '<' => html += "&lt;",
            '>' => html += "&gt;",
            '"' => html += "&quot;",
            '\'' => html += "&#39;",
            c if c.is_control() => html.extend(c.escape_default()),
            c => html.push(c),
        }
    }
    html
}

const LOOKS: &str = "\
:root{color-scheme:light dark;--ink:#1c1c1c;--paper:#fdfdfd;--grid:#d8d8d8;
--flawed:#c0392b;--backoff:#b9770e;--lockwarden:#1f6fb2;--lockwarden-nested:#1e8449}
@media (prefers-color-scheme:dark){:root{--ink:#e4e4e4;--paper:#16181b;--grid:#3a3d42;
--flawed:#ff7b6b;--backoff:#f0b34a;--lockwarden:#6cb6ff;--lockwarden-nested:#6fd08c}}
body{margin:2rem auto;max-width:50rem;padding:0 1rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin:2rem 0 .3rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.15rem .8rem;text-align:right;border-bottom:1px solid var(--grid);white-space:pre}
th[scope=row]{text-align:left;font-weight:normal}
figure{margin:0}svg{display:block;max-width:100%;height:auto}
.legend{margin:.2rem 0}.legend span{margin-right:1.2em;font-weight:600}
.legend span::before{content:'';display:inline-block;width:1.4em;border-top:3px solid;margin-right:.4em;
vertical-align:middle}
footer{margin-top:2rem;font-size:.85rem}
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_stands_in_a_text_is_text() {
        assert_eq!(escaped("<b a=\"1\">&'\n"), "&lt;b a=&quot;1&quot;&gt;&amp;&#39;\\n");
    }

    /// What was there stays until there is something new, and a file that was not there does not stay empty.
    #[test]
    fn a_report_that_is_not_written_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        std::fs::write(&old, "a longer text that was there").unwrap();
        for path in [&old, &new] {
            drop(Report::open(path).unwrap());
        }
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "a longer text that was there");
        assert!(!new.exists());
        for path in [&old, &new] {
            Report::open(path).unwrap().write("short").unwrap();
            assert_eq!(std::fs::read_to_string(path).unwrap(), "short");
        }
        let refused = Report::open(&dir.path().join("no/such")).err().unwrap();
        assert!(refused.to_string().contains("no/such"), "{refused}");
    }
}

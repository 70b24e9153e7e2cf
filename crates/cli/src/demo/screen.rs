//! The text of the demo, with the changing picture below it; plain lines if the output is not a terminal.

use std::io::IsTerminal as _;
use std::time::Duration;

use console::Style;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;

use super::picture;
use super::witness::Witness;

/// Minimum time between two frames.
const FRAME: Duration = Duration::from_millis(100);

/// The output of the demo.
pub(super) struct Screen {
    /// Set only if the output is a terminal.
    live: Option<MultiProgress>,
    drawing: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl Screen {
    pub(super) fn new() -> Self {
        let quiet = std::env::var_os("CI").is_some() || std::env::var_os("NO_COLOR").is_some();
        let live = std::io::stderr().is_terminal() && std::io::stdout().is_terminal() && !quiet;
        Self { live: live.then(MultiProgress::new), drawing: Mutex::new(None) }
    }

    /// Prints a line.
    pub(super) fn print(&self, line: &str) {
        let painted = if self.live.is_some() { paint(line) } else { line.to_owned() };
        match &self.live {
            // A closed terminal is not an error.
            Some(live) => drop(live.println(painted)),
            None => println!("{painted}"),
        }
    }

    /// Prints the title of a step.
    pub(super) fn print_heading(&self, title: &str) {
        self.print("");
        self.print(&format!("── {title}"));
    }

    /// Shows the picture from now on; does nothing if the output is not a terminal.
    pub(super) fn show(&self, witness: Witness) {
        let Some(live) = self.live.clone() else { return };
        let drawing = tokio::spawn(async move {
            let style =
                ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
            let mut bars: Vec<ProgressBar> = Vec::new();
            let nodes: Vec<String> = (1..=6).map(|number| format!("node-{number}")).collect();
            let mut changes = witness.changes();
            loop {
                let rows = picture::rows(&witness.pods(), &nodes);
                while bars.len() < rows.len() {
                    bars.push(live.add(ProgressBar::no_length().with_style(style.clone())));
                }
                for (bar, row) in bars.iter().zip(rows) {
                    bar.set_message(paint(&row));
                    bar.tick();
                }
                tokio::time::sleep(FRAME).await;
                if changes.changed().await.is_err() {
                    return;
                }
            }
        });
        *self.drawing.lock() = Some(AbortOnDropHandle::new(drawing));
    }

    /// Prints the current picture, unless a terminal already shows it.
    pub(super) fn snapshot(&self, witness: &Witness) {
        if self.live.is_some() {
            return;
        }
        let nodes: Vec<String> = (1..=6).map(|number| format!("node-{number}")).collect();
        for row in picture::rows(&witness.pods(), &nodes) {
            println!("    {row}");
        }
    }
}

/// Adds colours. The marks show the same without them.
fn paint(line: &str) -> String {
    if line.starts_with("── ") {
        return Style::new().bold().apply_to(line).to_string();
    }
    if line.starts_with("error ") || line.starts_with("Error ") {
        return Style::new().yellow().apply_to(line).to_string();
    }
    line.replace('●', &Style::new().green().apply_to("●").to_string())
        .replace('✓', &Style::new().green().apply_to("✓").to_string())
        .replace('✗', &Style::new().red().apply_to("✗").to_string())
        .replace('×', &Style::new().red().apply_to("×").to_string())
        .replace('○', &Style::new().yellow().apply_to("○").to_string())
}

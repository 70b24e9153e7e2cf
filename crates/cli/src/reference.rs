//! The reference of the command line, as a page of the documentation.

use std::fmt::Write as _;

/// Every command with its help.
pub(crate) fn markdown(command: &mut clap::Command) -> String {
    let mut page = "# The command line\n\nWritten by `cargo xtask generate`. As a plugin, `kubectl quorate` is the same.\n".to_owned();
    command.build();
    section(&mut page, command);
    for name in names(command) {
        if let Some(inner) = command.find_subcommand_mut(&name) {
            section(&mut page, inner);
        }
    }
    page
}

fn names(command: &clap::Command) -> Vec<String> {
    let shown = command.get_subcommands().filter(|inner| !inner.is_hide_set());
    shown.map(|inner| inner.get_name().to_owned()).collect()
}

fn section(page: &mut String, command: &mut clap::Command) {
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _ = write!(page, "\n## `{name}`\n\n```text\n{}\n```\n", lines.join("\n").trim_end());
}

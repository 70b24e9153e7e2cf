//! The findings of a check, in sections.

use std::fmt::Write as _;

use serde::Serialize;

use crate::output::Mark;

/// The findings of all checks.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub(super) good: bool,
    pub(super) sections: Vec<Section>,
}

/// The findings of one part.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Section {
    pub(super) name: &'static str,
    pub(super) findings: Vec<Finding>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Finding {
    pub(super) outcome: Mark,
    pub(super) what: String,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hint: Option<String>,
}

impl Section {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, findings: Vec::new() }
    }

    pub(super) fn good(&mut self, what: impl Into<String>) {
        self.findings.push(Finding { outcome: Mark::Good, what: what.into(), hint: None });
    }

    pub(super) fn warn(&mut self, what: impl Into<String>, hint: impl Into<String>) {
        let hint = Some(hint.into());
        self.findings.push(Finding { outcome: Mark::Warning, what: what.into(), hint });
    }

    pub(super) fn bad(&mut self, what: impl Into<String>, hint: impl Into<String>) {
        self.findings.push(Finding { outcome: Mark::Bad, what: what.into(), hint: Some(hint.into()) });
    }

    /// Adds a finding for a resource that cannot be read.
    pub(super) fn unlisted(&mut self, what: &str, error: &kube::Error) {
        let hint = match error {
            kube::Error::Api(status) if status.code == 403 => {
                format!("you need the verbs get and list on {what}")
            }
            _ => "try again".to_owned(),
        };
        self.bad(format!("cannot read {what}: {}", quorate_kit::Plain(error)), hint);
    }

    pub(super) fn is_bad(&self) -> bool {
        self.findings.iter().any(|finding| finding.outcome == Mark::Bad)
    }
}

impl Report {
    pub(super) fn words(&self) -> String {
        let mut text = String::new();
        for section in &self.sections {
            let _ = writeln!(text, "{}\n{}", section.name, "-".repeat(section.name.len()));
            for Finding { outcome, what, hint } in &section.findings {
                let _ = writeln!(text, "{outcome} {what}");
                if let Some(hint) = hint {
                    let _ = writeln!(text, "    {hint}");
                }
            }
            text.push('\n');
        }
        let _ = writeln!(text, "Status check results are {}", Mark::of(self.good));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_printed_with_its_remedy() {
        let mut section = Section::new("servers");
        section.good("2 servers are alive");
        section.bad("there is no leader", "wait 15 s");
        section.warn("one of them is late", "check its log");
        assert!(section.is_bad());
        let report = Report { good: false, sections: vec![section] };
        let expected = "servers\n-------\n✓ 2 servers are alive\n✗ there is no leader\n    wait 15 s\n\
                        ! one of them is late\n    check its log\n\nStatus check results are ✗\n";
        assert_eq!(report.words(), expected);
    }
}

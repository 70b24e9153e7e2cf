//! Leaves rules out by name, in test builds.

use std::fmt;

use crate::SafetyRule;
use crate::ledger::ProtocolRule;

/// There is no rule of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownRule(String);

impl fmt::Display for UnknownRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no rule {}", self.0)
    }
}

impl std::error::Error for UnknownRule {}

/// Leaves a safety rule or a rule of the protocol out, for the life of this process.
///
/// # Errors
/// There is no rule of this name.
pub fn leave_out(name: &str) -> Result<(), UnknownRule> {
    if let Some(rule) = SafetyRule::ALL.iter().find(|rule| format!("{rule:?}") == name) {
        rule.leave_out();
    } else if let Some(rule) = ProtocolRule::ALL.iter().find(|rule| format!("{rule:?}") == name) {
        rule.leave_out();
    } else {
        return Err(UnknownRule(name.to_owned()));
    }
    Ok(())
}

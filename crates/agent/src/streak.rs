//! Answers in a row, and what they amount to.

use quorate_intake::probe::Probe;

/// What a probe has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StreakResult {
    /// Too early to tell.
    #[default]
    Undecided,
    /// Yes.
    Yes,
    /// No.
    No,
}

/// The answers since the container started, or since the agent did.
///
/// As in the kubelet, a yes becomes a no after `failureThreshold` failures in a row, and a no a yes after
/// `successThreshold` successes. Nothing is taken for a yes before it was shown, so the first failure is a no at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Streak {
    result: StreakResult,
    passed: bool,
    length: u32,
}

impl Streak {
    pub(crate) fn result(self) -> StreakResult {
        self.result
    }

    /// Takes the next answer.
    pub(crate) fn take(&mut self, passed: bool, probe: &Probe) {
        self.length = if self.passed == passed { self.length.saturating_add(1) } else { 1 };
        self.passed = passed;
        if passed && self.length >= probe.success_threshold {
            self.result = StreakResult::Yes;
        }
        if !passed && (self.result == StreakResult::Undecided || self.length >= probe.failure_threshold) {
            self.result = StreakResult::No;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_intake::probe;

    /// `+` is an answer that passes, `-` one that fails; after each, `y`, `n` or `?`.
    fn told(success: u32, failure: u32, answers: &str) -> String {
        let text = format!(
            r#"{{"tcpSocket":{{"port":1}},"successThreshold":{success},"failureThreshold":{failure}}}"#
        );
        let probe = probe::parse("probe", &text).unwrap();
        let mut streak = Streak::default();
        let word = |answer| {
            streak.take(answer == '+', &probe);
            match streak.result() {
                StreakResult::Undecided => '?',
                StreakResult::Yes => 'y',
                StreakResult::No => 'n',
            }
        };
        answers.chars().map(word).collect()
    }

    #[test]
    fn thresholds_are_met_by_answers_in_a_row() {
        for (success, failure, answers, expected) in [
            (1, 1, "+-+-", "ynyn"),
            (1, 3, "+--+--+---+", "yyyyyyyyyny"),
            (1, 3, "-+", "ny"),
            (2, 3, "++---++", "?yyynny"),
            (3, 1, "++-+++-", "??nnnyn"),
            (3, 2, "++-++-+++", "??nnnnnny"),
            (1, 2, "+-+--", "yyyyn"),
            (2, 1, "+-+-", "?nnn"),
        ] {
            assert_eq!(told(success, failure, answers), expected, "{success} {failure} {answers}");
        }
    }
}

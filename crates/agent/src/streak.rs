//! Applies `successThreshold` and `failureThreshold` to the results of a probe.

use quorate_intake::probe::Probe;

/// The result of a probe after its thresholds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StreakResult {
    /// There are too few results yet.
    #[default]
    Undecided,
    /// The probe passes.
    Yes,
    /// The probe fails.
    No,
}

/// The results since the container started, or since the agent started.
///
/// As in the kubelet, `Yes` becomes `No` after `failureThreshold` failures in a row, and `No` becomes `Yes` after
/// `successThreshold` successes in a row. No success is assumed at first, so a failure turns `Undecided` into `No` at
/// once.
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

    /// Adds the next result.
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

    /// Input: `+` is a success, `-` a failure. Output: `y`, `n` or `?` after each.
    fn results(success: u32, failure: u32, answers: &str) -> String {
        let text = format!(
            r#"{{"tcpSocket":{{"port":1}},"successThreshold":{success},"failureThreshold":{failure}}}"#
        );
        let probe = probe::parse("probe", &text).unwrap();
        let mut streak = Streak::default();
        let letter = |answer| {
            streak.take(answer == '+', &probe);
            match streak.result() {
                StreakResult::Undecided => '?',
                StreakResult::Yes => 'y',
                StreakResult::No => 'n',
            }
        };
        answers.chars().map(letter).collect()
    }

    #[test]
    fn thresholds_count_results_in_a_row() {
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
            assert_eq!(results(success, failure, answers), expected, "{success} {failure} {answers}");
        }
    }
}

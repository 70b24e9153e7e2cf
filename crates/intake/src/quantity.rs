//! Kubernetes quantities of resources.

/// An amount in billionths; `None` if it cannot be parsed or overflows. As in Kubernetes, a fraction of a billionth
/// rounds up.
pub(crate) fn nanos(text: &str) -> Option<i128> {
    let text = text.trim();
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let (factor, decimals) = factor(suffix)?;
    // digits × factor × 10^(9 + decimals - digits after the point)
    let digits: i128 = parse(&format!("{whole}{}", fraction.trim_end_matches('0')))?;
    let places = i32::try_from(fraction.trim_end_matches('0').len()).ok()?;
    let exponent = 9 + decimals - places;
    let scaled = digits.checked_mul(factor)?;
    let power = 10i128.checked_pow(exponent.unsigned_abs());
    let amount = match (exponent >= 0, power) {
        (true, Some(power)) => scaled.checked_mul(power)?,
        (true, None) => (scaled == 0).then_some(0)?,
        (false, Some(power)) => scaled / power + i128::from(scaled % power != 0),
        (false, None) => i128::from(scaled != 0),
    };
    Some(if negative { -amount } else { amount })
}

fn parse(digits: &str) -> Option<i128> {
    if digits.is_empty() { Some(0) } else { digits.parse().ok() }
}

/// The multiplier of a suffix: a factor, and a power of ten.
fn factor(suffix: &str) -> Option<(i128, i32)> {
    let binary = |power: u32| Some((1i128 << (10 * power), 0));
    match suffix {
        "n" => Some((1, -9)),
        "u" => Some((1, -6)),
        "m" => Some((1, -3)),
        "" => Some((1, 0)),
        "k" => Some((1, 3)),
        "M" => Some((1, 6)),
        "G" => Some((1, 9)),
        "T" => Some((1, 12)),
        "P" => Some((1, 15)),
        "E" => Some((1, 18)),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?;
            (exponent.abs() < 100).then_some((1, exponent))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::nanos;

    #[test]
    fn different_notations_of_an_amount_are_equal() {
        let same = [
            &["500m", "0.5", "0.50", "5e-1", ".5", "+500m", "500000u"][..],
            &["128Mi", "134217728", "131072Ki", "0.125Gi"],
            &["1", "1.", "1000m", "1e0", "1E0"],
            &["1k", "1000", "1e3", "1E3"],
            &["0", "0Mi", "0e99", "-0"],
            &["2E", "2e18", "2000P"],
        ];
        for writings in same {
            for writing in writings {
                assert_eq!(nanos(writing), nanos(writings[0]), "{writing}");
                assert!(nanos(writing).is_some(), "{writing}");
            }
        }
        assert_eq!(nanos("-1"), Some(-1_000_000_000));
        assert_eq!(nanos("0.1n"), Some(1));
    }

    #[test]
    fn an_invalid_amount_is_not_parsed() {
        for text in ["", "m", "1.2.3", "one", "1ki", "1 Mi", "1e", "1e1000", "--1", "999999999999E"] {
            let _ = nanos(text);
        }
        for text in ["", "m", "1.2.3", "one", "1ki", "1e", "1e1000", "--1", "."] {
            assert_eq!(nanos(text), None, "{text}");
        }
    }
}

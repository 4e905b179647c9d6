//! Every exit code of the binary. The table in `docs/reference/cli.md` is compared with this one.

/// Done: also a server that was stopped, a valid definition, a clean store, tests that passed.
pub const OK: u8 = 0;
/// The answer is no.
pub const NO: u8 = 1;
/// Wrong usage, for every command but `validate`, `run` and `resume`.
pub const USAGE: u8 = 2;
/// No Onward server answers at the address.
pub const UNREACHABLE: u8 = 3;
/// `validate`, `run`: the definition is not valid. `resume`: there is no such run.
pub const INVALID: u8 = 10;
/// `validate`, `run`, `resume`: wrong usage.
pub const VALIDATE_USAGE: u8 = 20;
/// `run`, `resume`: the run did not complete.
pub const NOT_COMPLETED: u8 = 40;
/// Input or output failed, as `EX_IOERR` of sysexits.h.
pub const INPUT_OUTPUT: u8 = 74;
/// Another process has the store open, as `EX_TEMPFAIL`.
pub const IN_USE: u8 = 75;

/// The table of the reference: code, commands, meaning.
#[cfg(test)]
const TABLE: &[(u8, &str, &str)] = &[
    (
        OK,
        "all",
        "done: the server was stopped as requested, the definition is valid, the store is clean, all tests passed",
    ),
    (
        NO,
        "all but `validate`, `run` and `resume`",
        "the answer is no: the server refused, a run or task that was waited for did not succeed, tests failed, `verify` or `bench` found a problem",
    ),
    (
        USAGE,
        "all but `validate`, `run` and `resume`",
        "wrong usage: flags, a file that cannot be read or used, a store that does not match the flags",
    ),
    (UNREACHABLE, "client commands", "the server is unreachable, or the response is not from an Onward server"),
    (
        INVALID,
        "`validate`, `run`, `resume`",
        "the definition or the input is not valid, or cannot be read; there is no such run",
    ),
    (
        VALIDATE_USAGE,
        "`validate`, `run`, `resume`",
        "wrong usage, another hash than the one that was asked for, or a decision that does not fit the run",
    ),
    (NOT_COMPLETED, "`run`, `resume`", "the run failed, timed out, or was cancelled by another request"),
    (
        INPUT_OUTPUT,
        "`dev`, `serve`, `run`, `resume`, `verify`, `bench`, `openapi`, `completions`",
        "input or output error: cannot listen, cannot open or read the store, cannot write the output, or the outcome of a write is unknown",
    ),
    (IN_USE, "`dev`, `serve`, `run`, `resume`", "another process has the store open"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_has_this_table_of_exit_codes() {
        const PAGE: &str = include_str!("../../../docs/reference/cli.md");
        let rows: Vec<String> = TABLE.iter().map(|(code, who, what)| format!("| {code} | {who} | {what} |")).collect();
        let table = format!("| exit code | commands | meaning |\n|---|---|---|\n{}\n", rows.join("\n"));
        assert!(PAGE.contains(&table), "docs/reference/cli.md must contain this table:\n{table}");
        // The exit codes of a worker's own command are not ours.
        let others = PAGE.matches("| exit code |").count() - 1;
        assert_eq!(others, 1, "another table of exit codes");
    }
}

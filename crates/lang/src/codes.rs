//! Every diagnostic code, with the sentence that explains it. [`ALL`] generates the reference page. Codes are stable:
//! a code is never renamed and never gets a second meaning.

macro_rules! codes {
    ($($name:ident = $code:literal $explanation:literal;)*) => {
        // Some codes are used only by the kernel's parsers; they are listed here for the reference page.
        $(#[allow(dead_code)] #[doc = $explanation] pub const $name: &str = $code;)*

        /// Each code and its meaning, in the order of the reference page.
        pub const ALL: &[(&str, &str)] = &[$(($code, $explanation)),*];
    };
}

codes! {
    // Syntax.
    MALFORMED_JSON = "malformed_json" "The text is not JSON as RFC 8259 defines it.";
    MALFORMED_YAML = "malformed_yaml" "The text is not YAML 1.2.";
    NOT_UTF8 = "not_utf8" "The bytes are not UTF-8.";
    TOO_LARGE = "too_large" "A definition may have at most 1 MiB.";
    TOO_DEEP = "too_deep" "Lists and objects may be nested at most 64 deep.";
    DUPLICATE_KEY = "duplicate_key" "An object has the same key twice, so one of the two values would be lost.";
    YAML_ANCHOR = "yaml_anchor" "Anchors (`&name`) are not accepted; write the value where it is used.";
    YAML_ALIAS = "yaml_alias" "Aliases (`*name`) are not accepted; write the value where it is used.";
    YAML_MERGE = "yaml_merge" "Merge keys (`<<`) are not accepted; write the entries where they are used.";
    YAML_TAG = "yaml_tag" "Tags (`!name`) are not accepted.";
    YAML_DOCUMENTS = "yaml_documents" "A file holds one document; `---` may only come before it.";
    YAML_KEY = "yaml_key" "A key must be text; quote one that looks like a number, a boolean or null.";
    AMBIGUOUS_NUMBER = "ambiguous_number" "A value could be meant as a number or as text; quote it or write it plainly.";

    // The document as a whole.
    WRONG_TYPE = "wrong_type" "A value has the wrong type for its field.";
    MISSING_FIELD = "missing_field" "A required field is missing.";
    UNKNOWN_FIELD = "unknown_field" "No such field exists here; it may be misspelt.";
    UNSUPPORTED_SETTING = "unsupported_setting" "The field is known, but this release cannot honour it.";
    UNSUPPORTED_FORM = "unsupported_form" "This way of writing a workflow is known, but not built in this release.";
    UNSUPPORTED_TRIGGER = "unsupported_trigger" "This trigger is known, but not built in this release.";
    EXCLUSIVE_FIELDS = "exclusive_fields" "Two fields say the same thing; only one of them may be given.";
    INVALID_VALUE = "invalid_value" "A text is not one of the words its field accepts.";
    OUT_OF_RANGE = "out_of_range" "A number or length is outside the range that its field accepts.";
    NUMBER_TOO_LARGE = "number_too_large" "Whole numbers from 2^53 on lose digits on their way through JSON; write them as text.";
    LIMIT_EXCEEDED = "limit_exceeded" "A definition has more entries of a kind than the limit allows.";
    TOO_MANY_PROBLEMS = "too_many_problems" "Only the first 1,000 problems are listed.";
    INVALID_NAME = "invalid_name" "A workflow name has 1 to 80 visible characters, without control or direction-changing ones.";
    INVALID_SLUG = "invalid_slug" "A slug is `[a-z0-9][a-z0-9_-]{0,79}`.";
    INVALID_DURATION = "invalid_duration" "A duration is a count and a unit (`500ms`, `30s`, `5m`, `2h`, `1d`) or a whole number of seconds. A bare number in the `timeout` of an http step is milliseconds, from 1,000 on.";

    // The input of runs.
    INVALID_SCHEMA = "invalid_schema" "The `input` of a workflow is not a JSON Schema (2020-12).";
    UNSUPPORTED_SCHEMA = "unsupported_schema" "The `input` of a workflow uses a part of JSON Schema that is not supported: another dialect, a reference to another document, a pattern that cannot be matched in linear time, an unknown format.";
    INPUT_MISMATCH = "input_mismatch" "The `input` of a schedule does not fit the `input` schema of its workflow.";

    // Triggers.
    INVALID_CRON = "invalid_cron" "A schedule is five fields: minute, hour, day of month, month, day of week.";
    IMPOSSIBLE_SCHEDULE = "impossible_schedule" "A schedule names only days that do not exist, so it would never fire.";
    UNKNOWN_TIMEZONE = "unknown_timezone" "A time zone is a name from the IANA database, such as `Europe/Berlin`.";
    FIELD_NOT_FOR_TRIGGER = "field_not_for_trigger" "The field belongs to another kind of trigger.";
    INVALID_WEBHOOK_PATH = "invalid_webhook_path" "A webhook path has 1 to 200 of a-z, 0-9, `/`, `_` and `-`, without empty parts.";
    INVALID_SECRET = "invalid_secret" "A webhook secret has at least 8 characters; after `whsec_` it is base64.";
    SECRET_REQUIRED = "secret_required" "A webhook needs a `secret`, or `unsigned: true` to accept unsigned requests.";
    INVALID_MAPPING = "invalid_mapping" "A variable is mapped from a path such as `$.order.id`.";

    // Steps.
    INVALID_STEP_NAME = "invalid_step_name" "A step name is `[A-Za-z][A-Za-z0-9_-]{0,79}`.";
    ONE_BAD_ENDING = "one_bad_ending" "A warning: a condition looks for one of the three bad endings of a step (`failed`, `timeout`, `template_error`) and misses the others.";
    TRUE_WHEN_SKIPPED = "true_when_skipped" "A warning: a `!=` in a condition is also true when the step it reads was skipped.";
    IRREVERSIBLE_UNHANDLED = "irreversible_unhandled" "A warning: nothing handles the failure of an irreversible step that other steps are undone for.";
    OUTPUT_WRITTEN_TWICE = "output_written_twice" "A warning: two branches of a `parallel` write the same output, so the one that ends last decides.";
    NO_STEP_KIND = "no_step_kind" "A step does not say what it does.";
    TWO_STEP_KINDS = "two_step_kinds" "A step does exactly one thing; split it in two.";
    UNSUPPORTED_STEP_KIND = "unsupported_step_kind" "This kind of step is known, but not built in this release.";
    FIELD_NOT_FOR_KIND = "field_not_for_kind" "The field belongs to another kind of step.";
    INVALID_URL = "invalid_url" "A url starts with http:// or https:// and has a host, without spaces.";
    USERINFO_IN_URL = "userinfo_in_url" "A url may not carry a user name or password; send an Authorization header.";
    TEMPLATE_IN_HOST = "template_in_host" "A template may only form scheme, host or port of a url when the step lists `allow_hosts`.";
    TEMPLATE_IN_COMMAND = "template_in_command" "The text of a command is fixed: data reaches it through `env` and `stdin`.";
    INVALID_ENV = "invalid_env" "An environment variable has no valid name, or one that changes how commands are found or run.";
    BASH_DISABLED = "bash_disabled" "A warning: the definition has bash steps, and no server that can be seen runs their commands (`onward serve --bash`).";
    INVALID_HOST = "invalid_host" "An entry of `allow_hosts` is a host name, without scheme, port or path.";
    HOST_NOT_ALLOWED = "host_not_allowed" "The url's host is not in the step's own `allow_hosts`.";
    INVALID_HEADER = "invalid_header" "A header name is an HTTP token and its value has no line breaks.";
    DUPLICATE_HEADER = "duplicate_header" "Two header names differ only in case, which HTTP ignores.";
    RESERVED_HEADER = "reserved_header" "The engine sets this header itself.";
    INVALID_TYPE = "invalid_type" "A task's type is a dotted name such as `billing.invoice.v1`: 1 to 200 of A-Z, a-z, 0-9, `_`, `-` and `.`, without empty parts.";
    TEMPLATE_IN_TYPE = "template_in_type" "A template may only form the type of a task when the step lists the types it may be in `allow`.";
    TYPE_NOT_ALLOWED = "type_not_allowed" "The type of a task step is not in the step's own `allow`.";
    INVALID_SIGNAL_NAME = "invalid_signal_name" "A signal's name is `[A-Za-z][A-Za-z0-9_.-]{0,79}`, without templates.";
    TEMPLATE_IN_WORKFLOW = "template_in_workflow" "A template may only form the name of a subworkflow when the step lists the workflows it may be in `allow`.";
    WORKFLOW_NOT_ALLOWED = "workflow_not_allowed" "The workflow of a subworkflow step is not in the step's own `allow`.";
    DEFAULT_WITHOUT_TIMEOUT = "default_without_timeout" "A warning: an approval has a `default` but no `timeout`, so the run expires before the default could apply.";
    INVALID_STATUS = "invalid_status" "An expected status is an integer from 100 to 599 or a class such as `2xx`.";

    // Dependencies.
    NEEDS_UNKNOWN_STEP = "needs_unknown_step" "A step needs something that is not a step of this workflow.";
    NEEDS_ITSELF = "needs_itself" "A step needs itself and could never start.";
    DUPLICATE_NEED = "duplicate_need" "A step lists the same need twice.";
    DUPLICATE_STEP = "duplicate_step" "Two steps of a workflow have the same name; names are unique, also inside of groups and loops.";
    DEPENDENCY_CYCLE = "dependency_cycle" "Steps need each other in a cycle, so none of them could ever start.";

    // Conditions and templates.
    EXPRESSION_SYNTAX = "expression_syntax" "A condition is not an expression.";
    EXPRESSION_TOO_LONG = "expression_too_long" "A condition may have at most 4 KiB.";
    TEMPLATE_SYNTAX = "template_syntax" "A `{{…}}` does not hold one path, with defaults after `??` if any.";
    TEMPLATE_TOO_LONG = "template_too_long" "A text with templates may have at most 4 KiB.";
    TEMPLATE_IN_CONDITION = "template_in_condition" "A condition is an expression already and takes no `{{…}}`.";
    UNKNOWN_ROOT = "unknown_root" "A path begins with an unknown root.";
    UNKNOWN_STEP = "unknown_step" "A path names something that is not a step of this workflow.";
    UNKNOWN_TASK_FIELD = "unknown_task_field" "A path reads a field that steps do not have.";
    NOT_AN_ANCESTOR = "not_an_ancestor" "A step reads the result of a step that it does not need, directly or indirectly.";
    NOT_IN_SCOPE = "not_in_scope" "A path reads a step inside of a group or loop from outside of it.";
    NOT_A_WAIT = "not_a_wait" "A path reads the callback url of a step that does not wait for a webhook.";
    INCOMPLETE_PATH = "incomplete_path" "A path ends before it names a value.";
    PATH_TOO_LONG = "path_too_long" "A path continues into a plain value, such as a status.";

    // Test files.
    UNKNOWN_CASE_STEP = "unknown_case_step" "A test case names something that is not a step of its workflow.";
    UNKNOWN_CASE_SIGNAL = "unknown_case_signal" "A test case sends a signal that no step of its workflow waits for.";
    UNUSABLE_FILE = "unusable_file" "A test file names a definition that cannot be used.";
    CASE_STEP_KIND = "case_step_kind" "A test case uses a field that this kind of step does not have.";
    DUPLICATE_CASE = "duplicate_case" "Two cases of a test file have the same name.";
    EMPTY_EXPECTATION = "empty_expectation" "A test case expects nothing, so it could never fail.";
    INVALID_TIME = "invalid_time" "A time is RFC 3339 with a zone, such as `2027-03-28T00:00:00Z`.";

    INTERNAL = "internal" "A checked definition did not become a plan. This is a bug; please report it.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_is_listed_once_and_explained() {
        let mut codes: Vec<&str> = ALL.iter().map(|(code, _)| *code).collect();
        codes.sort_unstable();
        let count = codes.len();
        codes.dedup();
        assert_eq!(codes.len(), count);
        for (code, explanation) in ALL {
            assert!(code.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{code}");
            assert!(explanation.ends_with('.'), "{code}");
        }
    }
    #[test]
    fn the_codes_of_the_kernels_parsers_are_listed() {
        use kernel::{expr, path::Problem, template};
        let mut refuse = |_: &kernel::path::RawPath<'_>| Err(Problem::new(UNKNOWN_ROOT, "", 0, 0));
        let mut raised = Vec::new();
        for text in ["", "a", &"x".repeat(expr::LEN_MAX + 1)] {
            raised.extend(expr::parse(text, &mut refuse).unwrap_err());
        }
        for text in ["{{", "{{a..b}}", &format!("{{{{{}", "x".repeat(template::LEN_MAX))] {
            raised.extend(template::parse_text(text, &mut refuse).unwrap_err());
        }
        for problem in raised {
            assert!(ALL.iter().any(|(code, _)| *code == problem.code), "{}", problem.code);
        }
    }
}

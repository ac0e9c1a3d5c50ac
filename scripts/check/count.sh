# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# How ./check counts: a line for each step, with its cases and its time, and a summary at the end.

passed=0
failed=0
skipped=0
flaky=0     # tests that failed, and passed when they ran once more, alone
notable=()  # lines about cases that failed, were skipped or are flaky
failures=() # the logs of cases that failed
declare -A left_out # the parts that this level does not run, by the level that does
on_step=:   # what is told of each step: NAME, RESULT, TIME

# Print the name of a step. step_end completes the line.
step_begin() # STEP
{
	step_begun=$(now)
	step_name=$1
	printf '%-20s ' "$1"
}

# Count the verdicts that scripts/tally printed, and complete the line of the step. A line
# "took TIME" replaces the time since step_begin. A line "flaky" stands before the cases of its
# test, which count as they ended the second time.
step_end() # < verdicts
{
	local verdict name log p=0 f=0 s=0 again=0 text took=

	while IFS=$'\t' read -r verdict name log; do
		case $verdict in
		passed) p=$((p + 1)) ;;
		failed)
			f=$((f + 1))
			notable+=("failed:  $name ($log)")
			[[ " ${failures[*]} " = *" $log "* ]] || failures+=("$log")
			;;
		skipped)
			s=$((s + 1))
			notable+=("skipped: $name ($log)")
			;;
		flaky)
			again=$((again + 1))
			flaky_note "$name" "$log"
			;;
		took) took=$name ;;
		esac
	done
	passed=$((passed + p))
	failed=$((failed + f))
	skipped=$((skipped + s))
	flaky=$((flaky + again))
	text="$p passed"
	[ "$f" = 0 ] || text+=", $f FAILED"
	[ "$s" = 0 ] || text+=", $s skipped"
	[ "$again" = 0 ] || text+=", $again flaky"
	took=${took:-$(since "$step_begun")}
	printf '%-36s %10s\n' "$text" "$took"
	"$on_step" "$step_name" "$text" "$took"
}

# A row of build/logs/flaky.tsv for a test that is flaky, and a line that says how often it was.
flaky_note() # RUN:-TEST LOG
{
	local table=$logs/flaky.tsv run=${1%%: *} test=${1#*: } times

	[ -e "$table" ] || printf 'date\trevision\trun\ttest\tlog\n' >"$table"
	printf '%s\t%s\t%s\t%s\t%s\n' "$(date -u +%FT%TZ)" "$(tree_revision)" "$run" "$test" "$2" \
		>>"$table"
	times=$(awk -F '\t' -v test="$test" '$4 == test' "$table" | wc -l)
	notable+=("flaky:   $1 ($2; $times in $table)")
}

step_skip() # STEP WHY
{
	step_begin "$1"
	step_end <<<"skipped"$'\t'"$1"$'\t'"$2"
	return 1
}

# Skip a step for which this machine lacks something. In continuous integration that is a failure.
step_lacks() # STEP WHY
{
	[ "${CI-}" = true ] || step_skip "$1" "$2" || return
	step_begin "$1"
	step_end <<<"failed"$'\t'"$1"$'\t'"$2"
}

# Name a part that this level does not run, and the one that does. The summary lists it.
leave_out() # all|release TEXT
{
	left_out[$1]+="; $2"
}

# Print the skipped cases, the flaky tests, the failed cases and what their logs say, the counts,
# and "N passed, N failed, N skipped" as the last line. Failures come last: whoever sees only the
# end of a long output sees them.
summary()
{
	printf '\n'
	summary_cases 'skipped: '
	summary_cases 'flaky:   '
	summary_cases 'failed:  '
	summary_logs
	printf '\n%s in all; logs are in %s\n' "$(since "$begun")" "$logs"
	summary_left_out
	[ $flaky = 0 ] || echo "$flaky flaky: failed, and passed when run once more, alone." \
		"A test that is flaky twice is mended or goes."
	echo "$passed passed, $failed failed, $skipped skipped"
}

summary_cases() # PREFIX
{
	local line

	for line in "${notable[@]}"; do
		[[ $line != "$1"* ]] || printf '%s\n' "$line"
	done
}

# What the logs of failed cases say.
summary_logs()
{
	local log pattern

	pattern='^\[ +(ERROR|LINE|FAILED) |^#?[0-9]* *[^ ]+:[0-9]+: '
	pattern+='|(error|ERROR|WARNING|SUMMARY|Assertion|FAIL|FAILED|failed|timed? ?out|TIMEOUT)\b|^ +#[0-9]+ '
	for log in "${failures[@]}"; do
		printf '\n---- %s\n' "${log##*/}"
		[ ! -f "$log" ] || {
			grep -aE -A 2 --no-group-separator "$pattern" "$log" || tail -n 30 "$log"
		} | tail -n 60 | cut -c 1-400
	done
}

summary_left_out()
{
	local of

	for of in all release; do
		[ -z "${left_out[$of]-}" ] ||
			echo "left out: ${left_out[$of]#; }; ./check --$of runs them"
	done
}

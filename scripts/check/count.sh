# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# How ./check counts: a line for each step, with its cases and its time, and a summary at the end.

passed=0
failed=0
skipped=0
notable=()  # lines about cases that failed or were skipped
failures=() # the logs of cases that failed
left_out=() # the parts that this level does not run

# Print the name of a step. step_end completes the line.
step_begin() # STEP
{
	step_begun=$(now)
	printf '%-20s ' "$1"
}

# Count the verdicts that scripts/tally printed, and complete the line of the step. A line
# "took TIME" replaces the time since step_begin.
step_end() # < verdicts
{
	local verdict name log p=0 f=0 s=0 text took=

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
		took) took=$name ;;
		esac
	done
	passed=$((passed + p))
	failed=$((failed + f))
	skipped=$((skipped + s))
	text="$p passed"
	[ "$f" = 0 ] || text+=", $f FAILED"
	[ "$s" = 0 ] || text+=", $s skipped"
	printf '%-36s %10s\n' "$text" "${took:-$(since "$step_begun")}"
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

# Name a part that this level does not run. The summary lists it.
leave_out() # TEXT
{
	left_out+=("$1")
}

# Print the skipped cases, the failed ones and what their logs say, the counts, and
# "N passed, N failed, N skipped" as the last line. Failures come last: whoever sees only the end of
# a long output sees them.
summary()
{
	printf '\n'
	summary_cases 'skipped: '
	summary_cases 'failed:  '
	summary_logs
	printf '\n%s in all; logs are in %s\n' "$(since "$begun")" "$logs"
	summary_left_out
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
	pattern+='|(error|ERROR|WARNING|SUMMARY|Assertion|FAILED|failed|timed? ?out|TIMEOUT)\b|^ +#[0-9]+ '
	for log in "${failures[@]}"; do
		printf '\n---- %s\n' "${log##*/}"
		[ ! -f "$log" ] || {
			grep -aE -A 2 --no-group-separator "$pattern" "$log" || tail -n 30 "$log"
		} | tail -n 60 | cut -c 1-400
	done
}

summary_left_out()
{
	local text

	[ ${#left_out[@]} -gt 0 ] || return
	text=$(printf '%s; ' "${left_out[@]}")
	echo "left out: ${text%; }; ./check --all runs them"
}

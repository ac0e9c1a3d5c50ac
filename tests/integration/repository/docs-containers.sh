#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The manifests of examples/containers: Kubernetes and Compose accept them, their variables are
# settings of this version, the command has the options that they use, and docs/containers.md
# explains them.
set -u
wherry=$TEST_COMMAND
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
# shellcheck source=tests/cases.sh
. "$source/tests/cases.sh" || exit
manifests=$source/examples/containers
validators=(check-jsonschema==0.39.0 kubernetes-validate==1.37.0)

"$wherry" config >"$directory/settings" || exit 1
while read -r variable; do
	grep -q -w "$variable" "$directory/settings" &&
		grep -q "$variable" "$source/docs/containers.md"
	verdict "$variable is a setting, and explained" $?
done < <(grep -h -o 'WHERRY_[A-Z_]*' "$manifests"/* | sort -u)

# "--memory", "host:1GiB:cache" in YAML, --memory host:1GiB:cache in the script.
for command in serve registry bench ls; do
	"$wherry" "$command" --help >"$directory/help" || exit 1
	for option in $(tr -d '",[]' <"$manifests/kubernetes.yaml" |
		cat - <(tr -d '",[]' <"$manifests/compose.yaml") "$manifests/job.slurm" |
		grep -o "wherry $command .*" | grep -o -e '--[a-z]*' | sort -u); do
		grep -q -e "$option" "$directory/help"
		verdict "wherry $command $option" $?
	done
done

for file in "$manifests"/*; do
	grep -q "examples/containers/${file##*/}" "$source/docs/containers.md"
	verdict "${file##*/} is explained" $?
done

[ "$failed" = 0 ] || exit 1
# shellcheck source=scripts/common.sh
. "$source/scripts/common.sh"
tools=${XDG_CACHE_HOME:-$HOME/.cache}/wherry/manifests
if ! mkdir -p "${tools%/*}" || ! exec 9>"$tools.lock" || ! flock 9 ||
	! python_tools "$tools" "${validators[@]}" 2>&1; then
	echo "${validators[*]} cannot be installed from PyPI"
	exit 77
fi
"$tools/bin/kubernetes-validate" "$manifests/kubernetes.yaml"
verdict "kubernetes.yaml" $?
"$tools/bin/check-jsonschema" --builtin-schema vendor.compose-spec "$manifests/compose.yaml"
verdict "compose.yaml" $?
exit "$failed"

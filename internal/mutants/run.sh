#!/usr/bin/env bash
# Applies each mutant to a copy of the tree and demands that its test goes red. See README.md beside this file.
# Usage: internal/mutants/run.sh [patch...]      JOBS=n sets how many mutants run at once (2).
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
jobs=${JOBS:-2}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

if (($# > 0)); then
	patches=()
	for p in "$@"; do patches+=("$(realpath "$p")"); done
else
	mapfile -t patches < <(find "$root/internal/mutants" -maxdepth 1 -name '*.patch' | sort)
fi
if ((${#patches[@]} == 0)); then
	echo "mutants: none"
	exit 0
fi

# What is run is built once: neither inlined nor with symbols for a debugger, it is built in two thirds of the time.
build=(-vet=off '-gcflags=-l -dwarf=false' '-ldflags=-s -w')

# copy_tree DIR: the working tree, what is not committed yet included, without what git ignores.
copy_tree() {
	mkdir "$1"
	(cd "$root" && git ls-files -z --cached --others --exclude-standard |
		while IFS= read -r -d '' f; do if [[ -e $f ]]; then printf '%s\0' "$f"; fi; done |
		tar -c --null -T -) | tar -x -C "$1"
}

# header PATCH KEY: the value of the line "# KEY: value" above the diff.
header() { sed -n "/^--- /q; s/^# $2: *//p" "$1" | head -n 1; }

hung='panic: deadlock|fatal error: all goroutines are asleep|test timed out after'

# judge TREE PATCH: runs one mutant in TREE, which it leaves as it found it, and prints a verdict and why.
judge() {
	local tree=$1 patch=$2 args red timeout=60s out
	args=$(header "$patch" test)
	red=$(header "$patch" red)
	if [[ ! $args =~ ^\./[^\ ]*\ -run\ [^\ ]+ ]]; then
		echo "BAD: no header '# test: ./package -run TestName'"
		return
	fi
	if [[ $red == deadlock ]]; then
		timeout=15s
	elif [[ -n $red ]]; then
		echo "BAD: '# red: $red' is not known"
		return
	fi
	if ! out=$(cd "$tree" && git apply --whitespace=nowarn "$patch" 2>&1); then
		echo "BAD: does not apply: ${out%%$'\n'*}"
		return
	fi
	# shellcheck disable=SC2086 # the header's arguments are words
	out=$(cd "$tree" && go test "${build[@]}" -count=1 -timeout "$timeout" $args 2>&1 </dev/null) && rc=0 || rc=$?
	(cd "$tree" && git apply --whitespace=nowarn --reverse "$patch")
	if grep -Eq '\[(build|setup) failed\]' <<<"$out"; then
		echo "BAD: does not compile: $(grep -m 1 -E '^[^#F].*:[0-9]+:[0-9]+' <<<"$out" || true)"
	elif grep -q 'no tests to run' <<<"$out"; then
		echo "BAD: no such test: $args"
	elif ((rc == 0)); then
		echo "SURVIVED: go test $args passes"
	elif grep -Eq "$hung" <<<"$out"; then
		if [[ $red == deadlock ]]; then echo "red (deadlock)"; else echo "BAD: hangs; say '# red: deadlock' if it should"; fi
	elif grep -q -e '--- FAIL: ' <<<"$out"; then
		if grep -q '^panic: ' <<<"$out"; then echo "red (panic)"; else echo "red"; fi
	else
		echo "BAD: no test failed, but: $(tail -n 1 <<<"$out")"
	fi
}

# baseline TREE: without a mutant every test named is green, or its red would prove nothing. One run a package.
baseline() {
	local -A runs=()
	local patch pkg run
	for patch in "${patches[@]}"; do
		read -r pkg _ run _ < <(header "$patch" test && echo) || true
		if [[ -n ${run:-} ]]; then runs[$pkg]+="${runs[$pkg]:+|}$run"; fi
	done
	for pkg in "${!runs[@]}"; do
		if ! (cd "$1" && go test "${build[@]}" -count=1 "$pkg" -run "${runs[$pkg]}" </dev/null >"$tmp/baseline" 2>&1); then
			tail -n 30 "$tmp/baseline"
			echo "mutants: the tests of $pkg fail without a mutant"
			return 1
		fi
	done
}

worker() {
	local i
	copy_tree "$tmp/tree$1"
	for ((i = $1; i < ${#patches[@]}; i += jobs)); do
		local from=$EPOCHSECONDS
		judge "$tmp/tree$1" "${patches[i]}" >"$tmp/verdict$i"
		printf '%4ds  %-40s %s\n' $((EPOCHSECONDS - from)) "$(basename "${patches[i]}" .patch)" "$(<"$tmp/verdict$i")"
	done
}

copy_tree "$tmp/base"
baseline "$tmp/base"
pids=()
for ((w = 0; w < jobs && w < ${#patches[@]}; w++)); do
	worker "$w" &
	pids+=($!)
done
for p in "${pids[@]}"; do wait "$p"; done

killed=$(cat "$tmp"/verdict* | grep -c '^red' || true)
echo "mutants: $killed of ${#patches[@]} red"
((killed == ${#patches[@]}))

# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ./check --gpu: the tests of build/gpu-bundle on this machine's GPUs.

# The kernels under NVIDIA's compute-sanitizer: the one in the bundle, or the toolkit's.
check_sanitizer() # BUNDLE
{
	local bundle=$1 sanitizer=$1/sanitizer/compute-sanitizer tool

	[ -x "$sanitizer" ] || sanitizer=$(command -v compute-sanitizer ||
		echo /usr/local/cuda/bin/compute-sanitizer)
	for tool in memcheck initcheck synccheck; do
		if [ -x "$sanitizer" ]; then
			step_command "$tool" 600 env LD_LIBRARY_PATH="$bundle/src" \
				"$top/tests/gpu/sanitize.sh" "$tool" \
				"$sanitizer" "$bundle/bin"
		else
			step_skip "$tool" \
				"no compute-sanitizer; COMPUTE_SANITIZER=pip scripts/gpu-bundle adds it"
		fi
	done
}

check_gpu()
{
	local bundle=$build/gpu-bundle program name

	if [ ! -e "$bundle/bin/platform" ]; then
		install_packages build check
		step_command gpu-bundle 900 "$top/scripts/gpu-bundle" "$bundle" || return
	fi
	"$bundle/bin/platform" >"$logs/gpu.log" 2>&1
	[ $? != 77 ] || die 69 "no GPU here ($(tail -n 1 "$logs/gpu.log")); carry the tree with" \
		"build/gpu-bundle to a machine with one, and run this there"
	for program in "$bundle"/bin/*; do
		name=${program##*/}
		case $name in
		wherry | *.so.*) ;; # no tests
		gdrapi) step_command gdrapi 300 "$program" "$bundle/bin/libgdrapi.so.2" ;;
		*) step_command "${name#gpu-}" 300 env LD_LIBRARY_PATH="$bundle/src" "$program" ;;
		esac
	done
	check_sanitizer "$bundle"
	# PyTorch's allocators; skipped without PyTorch.
	step_command torch-windows 600 python3 "$top/tests/gpu/torch-windows.py" \
		"$bundle/bin/libgdrapi.so.2"
	# The Python package with its tensors, 10 s of transfers with each allocator.
	step_command python-torch 1200 env WHERRY_LIBRARY="$bundle/src/libwherry.so.0" \
		PYTHONPATH="$top/bindings/python" PYTHONDONTWRITEBYTECODE=1 \
		python3 "$top/tests/gpu/python-torch.py"
	# NIXL's agents with tensors; skipped without NIXL, of which NIXL_ARCHIVE may be an archive.
	step_command nixl-torch 600 python3 "$top/tests/gpu/nixl-torch.py" \
		--plugin "$bundle/nixl/libplugin_WHERRY.so" \
		${NIXL_ARCHIVE:+--unpack "$NIXL_ARCHIVE"}
	[ -e "$bundle/bin/wherry" ] || return
	step_command command-line 600 env -u TEST_CUDA LD_LIBRARY_PATH="$bundle/src" \
		"$top/tests/integration/command/gpu-command-line.sh" "$bundle/bin/wherry"
	step_command containers 300 env -u TEST_CUDA LD_LIBRARY_PATH="$bundle/src" \
		"$top/tests/gpu/containers.sh" "$bundle/bin/wherry"
	step_command window-check 600 env LD_LIBRARY_PATH="$bundle/src" "$bundle/bin/wherry" \
		window check
}

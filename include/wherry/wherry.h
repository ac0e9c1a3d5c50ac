/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wherry moves bytes between any two memories on any two machines, over the fastest path there
 * is, and says which path that was. This header brings in the whole API:
 *
 *   engine.h    an engine: its listener, its peers, completion queues, notifications
 *   memory.h    allocating memory and registering it as regions
 *   transfer.h  batches of transfers and of blocks: submit, wait, cancel, explain
 *   metrics.h   what an engine has counted
 *   window.h    the CPU's own loads and stores into memory of a GPU
 *   error.h     what went wrong, in words
 *
 * Rules that hold for every function:
 *   - It returns 0 or a negative errno; wh_error_text() then says what failed and what to try.
 *     Where a function returns something else, its comment says so.
 *   - Outputs are set on success only.
 *   - Every function may be called from any thread, on any object, unless its comment says
 *     otherwise; freeing an object while another thread still uses it is the caller's bug.
 *   - Options start with their own size. Fill them with { .size = sizeof(struct ...) } and the
 *     rest zero: zero always means "the default". An unknown tail that is not zero is -E2BIG.
 *   - An engine and everything made from it belong to the process that opened it: after fork()
 *     every call in the child is -EPERM.
 *   - Lengths are bytes, times are nanoseconds.
 */
#ifndef WHERRY_WHERRY_H
#define WHERRY_WHERRY_H

#include <wherry/engine.h>
#include <wherry/error.h>
#include <wherry/memory.h>
#include <wherry/metrics.h>
#include <wherry/transfer.h>
#include <wherry/window.h>

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wherry moves bytes between any two memories on any two machines, over the fastest path there
 * is, and says which path that was. This header includes the whole API:
 *
 *   engine.h    an engine: its listener, its peers, completion queues, notifications
 *   memory.h    allocating memory and registering it as regions
 *   transfer.h  batches of transfers and blocks: submit, wait, cancel, explain
 *   metrics.h   an engine's counters
 *   weights.h   the weights of a model, from their holders to many
 *   window.h    CPU loads and stores to a GPU's memory
 *   error.h     error texts, the version
 *
 * Rules that hold for every function:
 *   - It returns 0 or a negative errno, unless its comment says otherwise. After an error,
 *     wh_error_text() says what failed and what to try.
 *   - Outputs are set on success only.
 *   - It may be called from any thread, on any object, unless its comment says otherwise. The
 *     caller must not free an object that another thread still uses.
 *   - What was made is given back by one call: open and close, new and free, register and
 *     unregister. With NULL that call does nothing and returns 0.
 *   - Option structs start with their size. Initialise them with { .size = sizeof(struct ...) };
 *     zero in a field means its default. A non-zero tail that the library does not know is
 *     -E2BIG.
 *   - Structs that are passed in arrays or returned without a size have reserved members instead.
 *     They keep their size for ever. Where the caller fills the struct, reserved members must be
 *     0 (-EINVAL); where the library fills it, they are 0.
 *   - An engine and all of its objects belong to the process that opened it: after fork(), every
 *     call in the child returns -EPERM. The child has copies of the sockets: closing the engine
 *     closes them for both, but if the parent is killed its port stays taken while the child lives.
 *   - Lengths are bytes, times are nanoseconds.
 */
#ifndef WHERRY_WHERRY_H
#define WHERRY_WHERRY_H

#include <wherry/engine.h>
#include <wherry/error.h>
#include <wherry/file.h>
#include <wherry/memory.h>
#include <wherry/metrics.h>
#include <wherry/transfer.h>
#include <wherry/weights.h>
#include <wherry/window.h>

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What two layouts say of the same tensors, engines and regions, side by side. */
#ifndef WH_WEIGHTS_MATCH_H
#define WH_WEIGHTS_MATCH_H

#include "weights/layout.h"

#define WH_MATCH_NONE UINT32_MAX

/* Check that the layouts fit together: each tensor of the targets is one of the sources, of the
 * same type and shape; no engine uses a region in both; no two targets that each lie in one run
 * overlap. *of_source, which the caller frees, is the targets' tensor for each of the sources', or
 * WH_MATCH_NONE. 0, or -EINVAL, -ENOENT, -ENOMEM; the text has both sides. */
int wh_match(const struct wh_layout *sources, const struct wh_layout *targets,
	     uint32_t **of_source);

#endif

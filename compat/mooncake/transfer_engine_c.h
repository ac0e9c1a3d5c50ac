/* SPDX-License-Identifier: Apache-2.0 */
/* The name under which programs include Mooncake's C interface. */
#include <wherry/mooncake.h>

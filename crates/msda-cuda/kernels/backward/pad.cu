// pad: copies rows of grad_output to the workspace, so that each begins at a multiple of 16 bytes.
// value.cu and value_few.cu copy such pieces.
//
// Threads: one per piece of 16 bytes of the copy, with a grid-stride loop.
//
// Bound by: instructions; it reads and writes grad_output once.
#include "common/memory.cuh"
#include "common/tensor.cuh"

// Macros: ELEMENT_BYTES, 2 or 4; ROW_ALIGN, the alignment of the rows, a power of two; see
// CHECK_ARGS.
static_assert(ROW_ALIGN >= ELEMENT_BYTES && ROW_ALIGN < 16,
              "rows that are not aligned to 16 bytes");

struct Args {
    Strided from; // [image][query][head]
    char *to;
    int queries, heads, bytes; // bytes: of a row
    int row_pieces, pieces;    // of 16 bytes: of a row of the copy, and of the whole copy
};
CHECK_ARGS;

extern "C" __global__ void __launch_bounds__(256)
    msda_backward_pad(const __grid_constant__ Args args) {
    for (u32 index = blockIdx.x * 256 + threadIdx.x; index < args.pieces;
         index += gridDim.x * 256) {
        const u32 row = index / args.row_pieces, first = (index - row * args.row_pieces) * 16;
        const u32 query = row / args.heads, image = query / args.queries;
        const char *from =
            args.from.at(image, query - image * args.queries, row - query * args.heads) + first;
        Vector<16> piece{};
#pragma unroll
        for (int at = 0; at < 16; at += ROW_ALIGN) {
            if (first + at >= args.bytes) break;
            const Vector<ROW_ALIGN> part = ld_global_once<ROW_ALIGN>(from + at);
#pragma unroll
            for (int i = 0; i < Vector<ROW_ALIGN>::WORDS; i++) {
                piece.word[at / 4 + i] |= part.word[i] << (ROW_ALIGN < 4 ? at % 4 * 8 : 0);
            }
        }
        st_global<16>(args.to + i64(index) * 16, piece);
    }
}

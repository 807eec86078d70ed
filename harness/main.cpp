#include "harness/cli/cli.h"

int main(int argc, char** argv) { return eb::cli::run(argc, argv); }

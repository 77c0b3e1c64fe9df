"""The paper's figures from traces and sweeps, as SVG and PNG; the numbers of each lie beside it as CSV."""

# Draws what `make soak` has sampled: gnuplot -e "samples='soak.csv'; picture='docs/soak.png'" bench/soak.gp
set datafile separator ","
set terminal pngcairo size 1400,1200 font "sans,11"
set output picture
set multiplot layout 4,1
set key left top
set grid
set xlabel "minutes"
set xrange [0:*]
set yrange [0:*]
set title "emails, accepted by the API and by the provider"
plot samples using ($1/60):2 with lines lw 2 title "accepted by the API", \
     samples using ($1/60):3 with lines lw 1 title "accepted by the provider"
set title "resident memory, MB"
set key left bottom
plot samples using ($1/60):4 with lines lw 2 title "api", \
     samples using ($1/60):5 with lines lw 1 title "worker, the larger of two"
set title "dead rows"
set key right top
plot samples using ($1/60):6 with lines title "emails", \
     samples using ($1/60):7 with lines title "attempts", \
     samples using ($1/60):8 with lines title "river\\_job"
set title "size of the database, kB per email that the provider has accepted"
plot samples using ($1/60):($3 > 0 ? $9*1024/$3 : 0/0) with lines lw 2 notitle
